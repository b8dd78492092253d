// Cube maps: which face a direction meets, and which texel lies beyond a face's edge.
//
// Orientation is OpenGL's (specification of OpenGL 4.6, section 8.13, table 8.19): faces +x, -x, +y, -y, +z, -z, each
// seen from inside the cube; s runs along a row, t down the rows in memory.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend.h"

namespace diffrast {
namespace texturing {

constexpr int kCubeFaces = 6;

// The axes of one face: the one it is perpendicular to, and those that s and t run along, with their signs.
struct CubeFace {
  int axis, s_axis, t_axis;
  int sign, s_sign, t_sign;
};

DIFFRAST_HD CubeFace cube_face(int face) {
  CubeFace f;
  f.axis = face / 2;
  f.sign = face % 2 ? -1 : 1;
  f.s_axis = f.axis == 0 ? 2 : 0;
  f.t_axis = f.axis == 1 ? 2 : 1;
  f.s_sign = f.axis == 0 ? -f.sign : (f.axis == 2 ? f.sign : 1);
  f.t_sign = f.axis == 1 ? f.sign : -1;
  return f;
}

template <class T>
DIFFRAST_HD bool is_finite(T x) {
  return x - x == T(0);
}

// A direction seen on its face. `slope_s` is s_axis / |axis| with its sign, in [-1, 1]; s = (slope_s + 1) / 2.
template <class T>
struct CubePoint {
  bool valid;  // false: the direction is zero or not finite
  int face;
  T slope_s, slope_t;
  T distance;  // |axis|
};

template <class T>
DIFFRAST_HD CubePoint<T> cube_point(const T* direction) {
  const T x = std::fabs(direction[0]), y = std::fabs(direction[1]), z = std::fabs(direction[2]);
  const int axis = x >= y && x >= z ? 0 : (y >= z ? 1 : 2);
  CubePoint<T> point{};
  point.distance = axis == 0 ? x : (axis == 1 ? y : z);
  point.valid = point.distance > T(0) && is_finite(x) && is_finite(y) && is_finite(z);
  if (!point.valid) return point;
  point.face = 2 * axis + (direction[axis] < T(0) ? 1 : 0);
  const CubeFace f = cube_face(point.face);
  point.slope_s = f.s_sign * direction[f.s_axis] / point.distance;
  point.slope_t = f.t_sign * direction[f.t_axis] / point.distance;
  return point;
}

// The texel (x, y) of a face, either of them at most one step outside; its index among the 6 * size * size texels of
// the level. Beyond an edge lies the texel of the neighbouring face. Beyond a corner lies none: -1.
//
// In half texels the face's texel centres are the odd steps -(size-1) .. size-1 at a distance of `size` from the
// cube's centre. The texel over the edge lies at the distance `size` along the axis that was left, and one half step
// down along the axis that was the face's: all integers, so that no rounding can pick a wrong neighbour.
DIFFRAST_HD int64_t cube_texel(int face, int x, int y, int size) {
  const bool out_x = x < 0 || x >= size;
  const bool out_y = y < 0 || y >= size;
  if (out_x && out_y) return -1;
  if (out_x || out_y) {
    const CubeFace from = cube_face(face);
    int at[3];
    at[from.axis] = from.sign * (size - 1);
    at[from.s_axis] = from.s_sign * (out_x ? (x < 0 ? -size : size) : 2 * x + 1 - size);
    at[from.t_axis] = from.t_sign * (out_y ? (y < 0 ? -size : size) : 2 * y + 1 - size);
    const int axis = out_x ? from.s_axis : from.t_axis;
    face = 2 * axis + (at[axis] < 0 ? 1 : 0);
    const CubeFace to = cube_face(face);
    x = (to.s_sign * at[to.s_axis] + size - 1) / 2;
    y = (to.t_sign * at[to.t_axis] + size - 1) / 2;
  }
  return (static_cast<int64_t>(face) * size + y) * size + x;
}

}  // namespace texturing
}  // namespace diffrast
