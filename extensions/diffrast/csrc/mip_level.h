// The mip level of a pixel, from the derivatives of its texture coordinates, and the gradient of that choice.
//
// Laine et al. 2020 (arXiv 2011.03277), texture sampling: isotropic, by the longer axis of the pixel's footprint.
// With the Jacobian J = [ds/dX ds/dY; dt/dX dt/dY] in texels a pixel, a pixel of diameter 1 covers an ellipse whose
// axes are the singular values of J:
//   level = log2(sigma_max(J)) = log2(m) + log2(E + F + D) / 2 - 1/2,   D = sqrt((E - F)^2 + 4 G^2)
// where m is the largest |entry| of J (taken out first, so that nothing overflows), and E, F, G are the products
// <s,s>, <t,t>, <s,t> of the rows of J / m.
#pragma once

#include <cmath>

#include "backend.h"

namespace diffrast {
namespace texturing {

// Derivatives along the screen's X and Y, in texels of the base level a pixel.
template <class T>
struct Jacobian {
  T s[2], t[2];
};

template <class T>
struct MipLevel {
  T level;             // -inf where J is zero, NaN where it holds one
  Jacobian<T> slope;   // d level / d J; zero where level is not finite
};

template <class T>
DIFFRAST_HD MipLevel<T> mip_level(const Jacobian<T>& j) {
  MipLevel<T> found{};
  T largest = T(0);
  T nan = T(0);  // 0, or NaN once one was seen: comparisons would lose it
  for (int k = 0; k < 2; ++k) {
    const T s = std::fabs(j.s[k]), t = std::fabs(j.t[k]);
    nan += (s != s || t != t) ? s + t : T(0);
    largest = s > largest ? s : largest;
    largest = t > largest ? t : largest;
  }
  found.level = std::log2(largest) + nan;
  if (!(found.level - found.level == T(0))) return found;

  T s[2], t[2];
  for (int k = 0; k < 2; ++k) {
    s[k] = j.s[k] / largest;
    t[k] = j.t[k] / largest;
  }
  const T e = s[0] * s[0] + s[1] * s[1];
  const T f = t[0] * t[0] + t[1] * t[1];
  const T g = s[0] * t[0] + s[1] * t[1];
  const T d = std::sqrt((e - f) * (e - f) + T(4) * g * g);
  found.level += T(0.5) * std::log2(e + f + d) - T(0.5);

  // Of a circle every axis is the longest: (E - F) / D and 2 G / D have no limit there, and zero stands between.
  const T along = d > T(0) ? (e - f) / d : T(0);
  const T across = d > T(0) ? T(2) * g / d : T(0);
  const T scale = T(1.4426950408889634) / ((e + f + d) * largest);  // log2(e)
  for (int k = 0; k < 2; ++k) {
    found.slope.s[k] = scale * ((T(1) + along) * s[k] + across * t[k]);
    found.slope.t[k] = scale * ((T(1) - along) * t[k] + across * s[k]);
  }
  return found;
}

}  // namespace texturing
}  // namespace diffrast
