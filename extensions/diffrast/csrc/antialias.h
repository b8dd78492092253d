// Coverage at outlines: colours of neighbouring pixels are mixed where an outline passes between them, which makes
// visibility differentiable in the vertex positions (arXiv 2011.03277, section 3.5). Torch-free.
#pragma once

#include "silhouette.h"

namespace diffrast {

// Channels that one item of a grid mixes.
constexpr int64_t kChannelsPerItem = 4;
// Stands for "no outline" in a table of blends; real ones are within 0.5 and the slack.
template <class T>
constexpr T kNoBlend = 2;

// The blend of each pixel with its right and its upper neighbour, one item per pair.
template <class T>
struct FindOutlines {
  OutlineFinder<T> finder;
  T* blends;  // (batch, height, width, 2)
  DIFFRAST_HD void operator()(int64_t item) const {
    Crossing<T> c;
    blends[item] = finder.find(item / 2, static_cast<int>(item % 2), c) ? c.blend : kNoBlend<T>;
  }
};

// Calls visit(blend, lower, upper) for the four pairs that `pixel` is part of and that an outline passes through.
template <class T, class Visit>
DIFFRAST_HD void each_outline(const AntialiasProblem<T>& p, const T* blends, int64_t pixel, const Visit& visit) {
  const int64_t x = pixel % p.width, y = pixel / p.width % p.height;
  const T right = blends[2 * pixel], up = blends[2 * pixel + 1];
  const T left = x > 0 ? blends[2 * (pixel - 1)] : kNoBlend<T>;
  const T down = y > 0 ? blends[2 * (pixel - p.width) + 1] : kNoBlend<T>;
  if (right != kNoBlend<T>) visit(right, pixel, pixel + 1);
  if (up != kNoBlend<T>) visit(up, pixel, pixel + p.width);
  if (left != kNoBlend<T>) visit(left, pixel - 1, pixel);
  if (down != kNoBlend<T>) visit(down, pixel - p.width, pixel);
}

// The mixed colours, one item per pixel and piece of its channels.
template <class T>
struct MixColors {
  AntialiasProblem<T> p;
  const T* blends;
  int64_t pieces;
  T* out;
  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t pixel = item / pieces, begin = item % pieces * kChannelsPerItem;
    const int64_t end = begin + kChannelsPerItem < p.channels ? begin + kChannelsPerItem : p.channels;
    for (int64_t c = begin; c < end; ++c) out[pixel * p.channels + c] = p.color[pixel * p.channels + c];
    each_outline(p, blends, pixel, [&](T blend, int64_t lower, int64_t upper) {
      if (pixel != (blend > 0 ? lower : upper)) return;
      for (int64_t c = begin; c < end; ++c) {
        out[pixel * p.channels + c] += blend * (p.color[upper * p.channels + c] - p.color[lower * p.channels + c]);
      }
    });
  }
};

// The gradient of the colours, one item per pixel and piece of its channels.
template <class T>
struct GradColors {
  AntialiasProblem<T> p;
  const T* blends;
  int64_t pieces;
  const T* grad_out;
  T* grad_color;
  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t pixel = item / pieces, begin = item % pieces * kChannelsPerItem;
    const int64_t end = begin + kChannelsPerItem < p.channels ? begin + kChannelsPerItem : p.channels;
    for (int64_t c = begin; c < end; ++c) grad_color[pixel * p.channels + c] = grad_out[pixel * p.channels + c];
    each_outline(p, blends, pixel, [&](T blend, int64_t lower, int64_t upper) {
      const T share = pixel == upper ? blend : -blend;
      const T* from = grad_out + (blend > 0 ? lower : upper) * p.channels;
      for (int64_t c = begin; c < end; ++c) grad_color[pixel * p.channels + c] += share * from[c];
    });
  }
};

// The gradient of the positions: adds, one item per pair.
template <class T>
struct GradPositions {
  OutlineFinder<T> finder;
  const T* blends;
  const T* grad_out;
  T boost;
  T* grad_pos;
  DIFFRAST_HD void operator()(int64_t item) const {
    if (blends[item] == kNoBlend<T>) return;
    Crossing<T> c;
    if (!finder.find(item / 2, static_cast<int>(item % 2), c)) return;
    const AntialiasProblem<T>& p = finder.p;
    const T* from = grad_out + (c.blend > 0 ? c.pixel : c.neighbour) * p.channels;
    const T* lower = p.color + c.pixel * p.channels;
    const T* upper = p.color + c.neighbour * p.channels;
    T by_blend = 0;
    for (int64_t i = 0; i < p.channels; ++i) by_blend += from[i] * (upper[i] - lower[i]);
    if (by_blend == 0) return;
    T by[2][4];
    place_by_vertices(c, by);
    for (int k = 0; k < 2; ++k) {
      for (int i = 0; i < 4; ++i) {
        if (i != 2) atomic_add(grad_pos + c.end[k] + i, -boost * by_blend * by[k][i]);
      }
    }
  }
};

// Writes out like color. `blends`: scratch, (batch, height, width, 2).
template <class Backend, class T>
void antialias(Backend& backend, const AntialiasProblem<T>& p, T* blends, T* out) {
  const int64_t pieces = (p.channels + kChannelsPerItem - 1) / kChannelsPerItem;
  backend.each(2 * p.pixels(), FindOutlines<T>{{p}, blends});
  backend.each(p.pixels() * pieces, MixColors<T>{p, blends, pieces, out});
}

// Writes grad_color like color, adds to grad_pos like pos. `blends` as above.
template <class Backend, class T>
void antialias_backward(Backend& backend, const AntialiasProblem<T>& p, T boost, const T* grad_out, T* blends,
                        T* grad_color, T* grad_pos) {
  const int64_t pieces = (p.channels + kChannelsPerItem - 1) / kChannelsPerItem;
  backend.each(2 * p.pixels(), FindOutlines<T>{{p}, blends});
  backend.each(p.pixels() * pieces, GradColors<T>{p, blends, pieces, grad_out, grad_color});
  backend.each_in_order(2 * p.pixels(), GradPositions<T>{{p}, blends, grad_out, boost, grad_pos});
}

}  // namespace diffrast
