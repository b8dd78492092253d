// The texels under a sampling point, within one mip level: which they are, how they are weighted, how the value slopes.
//
// Texel i of a side of n covers [i/n, (i+1)/n]; its centre is (i + 1/2) / n. So a coordinate c lies at c*n - 1/2 among
// the centres.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend.h"
#include "cube_map.h"

namespace diffrast {
namespace texturing {

enum class Filter { nearest, linear, mip_nearest, mip_linear };
enum class Boundary { wrap, clamp, zero, cube };

// Two neighbouring texels along one axis; -1 or `size` where the boundary gives none. Cube: as they are, for
// cube_texel.
template <class T>
struct Neighbours {
  int first, second;
  T fraction;  // of the way from the first centre to the second
};

DIFFRAST_HD int bounded(int i, int size, Boundary boundary) {
  if (boundary == Boundary::cube || (i >= 0 && i < size)) return i;
  if (boundary == Boundary::wrap) return i < 0 ? i + size : i - size;  // one step out at most
  if (boundary == Boundary::clamp) return i < 0 ? 0 : size - 1;
  return -1;
}

template <class T>
DIFFRAST_HD Neighbours<T> neighbours(T c, int size, Boundary boundary) {
  if (boundary == Boundary::wrap) c -= std::floor(c);
  T x = c * static_cast<T>(size) - T(0.5);
  // Keeps the cast in range. Farther out nothing changes: both texels are the border's, or both are none.
  x = x < T(-2) ? T(-2) : (x > static_cast<T>(size + 1) ? static_cast<T>(size + 1) : x);
  const T below = std::floor(x);
  const int first = static_cast<int>(below);
  return {bounded(first, size, boundary), bounded(first + 1, size, boundary), x - below};
}

// The texel that holds c, -1 if none does.
template <class T>
DIFFRAST_HD int holder(T c, int size, Boundary boundary) {
  if (boundary == Boundary::wrap) c -= std::floor(c);
  T x = std::floor(c * static_cast<T>(size));
  x = x < T(-1) ? T(-1) : (x > static_cast<T>(size) ? static_cast<T>(size) : x);
  const int i = static_cast<int>(x);
  // c = 1 lies on a border: wrapped, it is 1 only by rounding; on a cube the face ends with it.
  if ((boundary == Boundary::wrap || boundary == Boundary::cube) && i >= size) return size - 1;
  return bounded(i, size, boundary);
}

// Four texels, (top, left), (top, right), (bottom, left), (bottom, right), as offsets into the level's numbers.
template <class T>
struct Footprint {
  int64_t at[4];   // -1: counts as zero
  T right, below;  // fractions
  int missing;     // the one of the four beyond a cube's corner, or -1
};

// `first_texel` is where the level starts, in texels; `face` is 0 but for cubes.
template <class T>
DIFFRAST_HD Footprint<T> footprint(int face, T s, T t, int width, int height, int64_t first_texel, int64_t channels,
                                   bool nearest, Boundary boundary) {
  Footprint<T> f{{-1, -1, -1, -1}, T(0), T(0), -1};
  if (nearest) {
    const int x = holder(s, width, boundary), y = holder(t, height, boundary);
    if (x >= 0 && y >= 0) {
      f.at[0] = (first_texel + (static_cast<int64_t>(face) * height + y) * width + x) * channels;
    }
    return f;
  }
  const Neighbours<T> across = neighbours(s, width, boundary);
  const Neighbours<T> down = neighbours(t, height, boundary);
  f.right = across.fraction;
  f.below = down.fraction;
  for (int k = 0; k < 4; ++k) {
    const int x = k % 2 ? across.second : across.first;
    const int y = k / 2 ? down.second : down.first;
    int64_t texel = -1;
    if (boundary == Boundary::cube) {
      texel = cube_texel(face, x, y, width);
      if (texel < 0) f.missing = k;
    } else if (x >= 0 && y >= 0) {
      texel = static_cast<int64_t>(y) * width + x;
    }
    if (texel >= 0) f.at[k] = (first_texel + texel) * channels;
  }
  return f;
}

// One channel of the four texels. Where three faces of a cube meet there are three texels; their mean stands for the
// fourth (OpenGL 4.6, section 8.14.2: seamless cube map filtering), so the value is the same seen from each face.
template <class T>
DIFFRAST_HD void gather(const T* level, const Footprint<T>& f, int64_t channel, T v[4]) {
  for (int k = 0; k < 4; ++k) v[k] = f.at[k] < 0 ? T(0) : level[f.at[k] + channel];
  if (f.missing >= 0) {
    const T mean = (v[0] + v[1] + v[2] + v[3]) / T(3);
    v[f.missing] = mean;
  }
}

template <class T>
DIFFRAST_HD T blend(const Footprint<T>& f, const T v[4]) {
  const T top = v[0] * (T(1) - f.right) + v[1] * f.right;
  const T bottom = v[2] * (T(1) - f.right) + v[3] * f.right;
  return top * (T(1) - f.below) + bottom * f.below;
}

// d value / d (steps along a row, steps down the rows). Differences of neighbours first: exact where the texture is
// flat.
template <class T>
DIFFRAST_HD void slope(const Footprint<T>& f, const T v[4], T& along, T& down) {
  along = (v[1] - v[0]) * (T(1) - f.below) + (v[3] - v[2]) * f.below;
  down = (v[2] - v[0]) * (T(1) - f.right) + (v[3] - v[1]) * f.right;
}

// d value / d each texel.
template <class T>
DIFFRAST_HD void weights(const Footprint<T>& f, T w[4]) {
  w[0] = (T(1) - f.below) * (T(1) - f.right);
  w[1] = (T(1) - f.below) * f.right;
  w[2] = f.below * (T(1) - f.right);
  w[3] = f.below * f.right;
  if (f.missing >= 0) {
    const T share = w[f.missing] / T(3);
    for (int k = 0; k < 4; ++k) w[k] += share;
  }
}

}  // namespace texturing
}  // namespace diffrast
