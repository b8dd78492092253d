// Where one pixel looks in a texture: the place, the mip levels and the share of each.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend.h"
#include "cube_map.h"
#include "mip_level.h"
#include "mips.h"
#include "texture_footprint.h"

namespace diffrast {
namespace texturing {

template <class T>
struct TextureProblem {
  const T* tex;     // (tex_batch, faces, height, width, channels)
  const T* mip;     // (tex_batch, pack, channels) as in mips.h; null without levels
  const T* uv;      // (batch, pixels, 2), cube: 3
  const T* uv_da;   // (batch, pixels, 2 or 3, 2): d uv / d (X, Y) of the screen; or null
  const T* bias;    // (batch, pixels), or null
  int64_t batch, pixels, tex_batch, channels;
  int64_t channels_per_item;  // how many channels one item samples
  MipLayout layout;
  Filter filter;
  Boundary boundary;

  DIFFRAST_HD bool cube() const { return boundary == Boundary::cube; }
  DIFFRAST_HD int64_t blocks() const { return (channels + channels_per_item - 1) / channels_per_item; }
  // Where a level of the pixel's texture starts, and the same place in a tensor of gradients.
  template <class P>
  DIFFRAST_HD P* level_of(P* base, P* pack, int64_t pixel, int level) const {
    const int64_t image = tex_batch == 1 ? 0 : pixel / pixels;
    return level == 0 ? base + image * layout.texels_of(0) * channels
                      : pack + image * layout.start[layout.levels + 1] * channels;
  }
};

// Where one pixel looks.
template <class T>
struct Aim {
  bool valid;  // false: the value is 0 and so is every gradient
  int face;
  T s, t;
  CubePoint<T> on_cube;
  int level, coarser;  // the same where one level is enough
  T mix;               // of the coarser one
  bool level_moves;    // whether uv_da and bias still change the value: neither rounded nor clamped
  Jacobian<T> level_slope;
};

// d (slope_s, slope_t, distance) / d (X, Y): the cube's uv_da on the axes of the face.
template <class T>
struct CubeRates {
  T s[2], t[2], distance[2];
};

template <class T>
DIFFRAST_HD CubeRates<T> cube_rates(const CubePoint<T>& point, const T* da) {
  const CubeFace f = cube_face(point.face);
  CubeRates<T> r;
  for (int k = 0; k < 2; ++k) {
    r.distance[k] = f.sign * da[2 * f.axis + k];
    r.s[k] = (f.s_sign * da[2 * f.s_axis + k] - point.slope_s * r.distance[k]) / point.distance;
    r.t[k] = (f.t_sign * da[2 * f.t_axis + k] - point.slope_t * r.distance[k]) / point.distance;
  }
  return r;
}

template <class T>
DIFFRAST_HD Jacobian<T> jacobian(const TextureProblem<T>& p, const Aim<T>& aim, int64_t pixel) {
  Jacobian<T> j;
  const T width = static_cast<T>(p.layout.width), height = static_cast<T>(p.layout.height);
  if (p.cube()) {
    const CubeRates<T> r = cube_rates(aim.on_cube, p.uv_da + 6 * pixel);
    for (int k = 0; k < 2; ++k) {
      j.s[k] = r.s[k] * T(0.5) * width;
      j.t[k] = r.t[k] * T(0.5) * height;
    }
  } else {
    for (int k = 0; k < 2; ++k) {
      j.s[k] = p.uv_da[4 * pixel + k] * width;
      j.t[k] = p.uv_da[4 * pixel + 2 + k] * height;
    }
  }
  return j;
}

template <class T>
DIFFRAST_HD void choose_level(const TextureProblem<T>& p, Aim<T>& aim, int64_t pixel) {
  T level = T(0);
  if (p.uv_da) {
    const MipLevel<T> found = mip_level(jacobian(p, aim, pixel));
    level = found.level;
    aim.level_slope = found.slope;
  }
  if (p.bias) level += p.bias[pixel];
  const T last = static_cast<T>(p.layout.levels);
  if (!(level > T(0))) return;  // also NaN: the base
  if (level >= last) {
    aim.level = aim.coarser = p.layout.levels;
  } else if (p.filter == Filter::mip_nearest) {
    aim.level = aim.coarser = static_cast<int>(std::floor(level + T(0.5)));
  } else {
    aim.level = static_cast<int>(std::floor(level));
    aim.coarser = aim.level + 1;
    aim.mix = level - std::floor(level);
    aim.level_moves = true;
  }
}

template <class T>
DIFFRAST_HD Aim<T> take_aim(const TextureProblem<T>& p, int64_t pixel) {
  Aim<T> aim{};
  if (p.cube()) {
    aim.on_cube = cube_point(p.uv + 3 * pixel);
    aim.valid = aim.on_cube.valid;
    aim.face = aim.on_cube.face;
    aim.s = (aim.on_cube.slope_s + T(1)) / T(2);
    aim.t = (aim.on_cube.slope_t + T(1)) / T(2);
  } else {
    aim.s = p.uv[2 * pixel];
    aim.t = p.uv[2 * pixel + 1];
    aim.valid = is_finite(aim.s) && is_finite(aim.t);
  }
  if (aim.valid && (p.filter == Filter::mip_nearest || p.filter == Filter::mip_linear)) choose_level(p, aim, pixel);
  return aim;
}

template <class T>
DIFFRAST_HD Footprint<T> footprint_at(const TextureProblem<T>& p, const Aim<T>& aim, int level) {
  return footprint(aim.face, aim.s, aim.t, p.layout.width_of(level), p.layout.height_of(level), p.layout.start[level],
                   p.channels, p.filter == Filter::nearest, p.boundary);
}

}  // namespace texturing
}  // namespace diffrast
