// The arithmetic of one sampling point, forward and backward.
//
// This header is the only place where it is written. The CPU and the CUDA
// kernels both include it and add nothing but loops, loads and stores, so a
// test of the CPU kernels is a test of the formulas that run on the GPU.
//
// Formulas: Deformable DETR (Zhu et al., 2021, arXiv 2010.04159, section 4.1 and
// its published interface). A normalised location (x, y) is the pixel position
// (x*W - 1/2, y*H - 1/2); pixels outside the level are zero. That is grid_sample
// with mode="bilinear", padding_mode="zeros", align_corners=False at 2*loc - 1.
#pragma once

#include <cmath>
#include <cstdint>

#include "problem.h"

namespace msda {

struct Level {
  int64_t height;
  int64_t width;
  int64_t start;  // first row of the level in value's S axis
};

MSDA_INLINE Level level_at(const int64_t* shapes, const int64_t* starts, int64_t index) {
  return {shapes[2 * index], shapes[2 * index + 1], starts[index]};
}

// Whether every pixel of the level lies inside value's S axis. Kernels never
// read a level that does not. Divides instead of multiplying: a nonsense shape
// must not pass by overflowing.
MSDA_INLINE bool fits(const Level& level, int64_t rows) {
  if (level.height < 0 || level.width < 0 || level.start < 0 || level.start > rows) return false;
  if (level.height == 0 || level.width == 0) return true;
  return level.width <= (rows - level.start) / level.height;
}

// Where a point falls: four corners, in the order (top, left), (top, right),
// (bottom, left), (bottom, right).
template <typename A>
struct Sample {
  bool hit;        // false: no corner counts and every gradient is zero
  int64_t row[4];  // row of each corner in value's S axis; -1 outside the level
  A right;         // fraction of the way to the right-hand column
  A below;         // fraction of the way to the lower line
};

template <typename A>
MSDA_INLINE Sample<A> locate(A x, A y, const Level& level) {
  Sample<A> s;
  const A px = x * static_cast<A>(level.width) - static_cast<A>(0.5);
  const A py = y * static_cast<A>(level.height) - static_cast<A>(0.5);
  // Written so that NaN misses. It also keeps the casts below in range.
  s.hit = px > static_cast<A>(-1) && py > static_cast<A>(-1) && px < static_cast<A>(level.width) &&
          py < static_cast<A>(level.height);
  if (!s.hit) {
    s.row[0] = s.row[1] = s.row[2] = s.row[3] = -1;
    s.right = s.below = static_cast<A>(0);
    return s;
  }
  const A floor_x = std::floor(px);
  const A floor_y = std::floor(py);
  s.right = px - floor_x;
  s.below = py - floor_y;
  const int64_t left = static_cast<int64_t>(floor_x);
  const int64_t top = static_cast<int64_t>(floor_y);
  const bool in_left = left >= 0 && left < level.width;
  const bool in_right = left + 1 < level.width;
  const bool in_top = top >= 0 && top < level.height;
  const bool in_bottom = top + 1 < level.height;
  const int64_t first = level.start + top * level.width + left;
  s.row[0] = in_top && in_left ? first : -1;
  s.row[1] = in_top && in_right ? first + 1 : -1;
  s.row[2] = in_bottom && in_left ? first + level.width : -1;
  s.row[3] = in_bottom && in_right ? first + level.width + 1 : -1;
  return s;
}

// Bilinear weight of each corner, computed once a point.
template <typename A>
MSDA_INLINE void corner_weights(const Sample<A>& s, A coef[4]) {
  const A one = static_cast<A>(1);
  coef[0] = (one - s.below) * (one - s.right);
  coef[1] = (one - s.below) * s.right;
  coef[2] = s.below * (one - s.right);
  coef[3] = s.below * s.right;
}

// Forward, one channel: the interpolated value. v holds 0 for outside corners.
template <typename A>
MSDA_INLINE A blend(const A coef[4], A v0, A v1, A v2, A v3) {
  return coef[0] * v0 + coef[1] * v1 + coef[2] * v2 + coef[3] * v3;
}

// Backward sums over the channels of one point.
template <typename A>
struct PointSums {
  A weight;  // d out / d attn_weight
  A x;       // d out / d px, before the attention weight
  A y;       // d out / d py, before the attention weight
};

template <typename A>
MSDA_INLINE void add_channel(PointSums<A>& sums, const Sample<A>& s, const A coef[4], A grad, A v0,
                             A v1, A v2, A v3) {
  // Differences of neighbours first: they are exact where the map is smooth,
  // which four separate sums over the channels would not be.
  const A slope_x = (static_cast<A>(1) - s.below) * (v1 - v0) + s.below * (v3 - v2);
  const A slope_y = (static_cast<A>(1) - s.right) * (v2 - v0) + s.right * (v3 - v1);
  sums.weight += grad * blend(coef, v0, v1, v2, v3);
  sums.x += grad * slope_x;
  sums.y += grad * slope_y;
}

// From pixel units back to normalised ones, and times the attention weight.
template <typename A>
MSDA_INLINE A grad_loc_x(const PointSums<A>& sums, const Level& level, A weight) {
  return sums.x * weight * static_cast<A>(level.width);
}

template <typename A>
MSDA_INLINE A grad_loc_y(const PointSums<A>& sums, const Level& level, A weight) {
  return sums.y * weight * static_cast<A>(level.height);
}

}  // namespace msda
