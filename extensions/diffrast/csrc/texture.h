// The texture operator: sample a texture at each pixel's coordinates, and the gradients of that. Torch-free.
//
// texture_aim.h says where a pixel looks, texture_footprint.h which texels lie there; here they are loaded and summed.
#pragma once

#include <cstdint>

#include "backend.h"
#include "texture_aim.h"

namespace diffrast {
namespace texturing {

// What is asked for; null is left out. Each has the shape of its input. tex and mip are added to, the others written.
template <class T>
struct TextureGradients {
  const T* out;  // (batch, pixels, channels)
  T *tex, *mip, *uv, *uv_da, *bias;
};

// Forward. An item is a pixel and some of its channels.
template <class T>
struct SampleTexture {
  TextureProblem<T> p;
  T* out;

  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t pixel = item / p.blocks();
    const int64_t begin = item % p.blocks() * p.channels_per_item;
    const int64_t end = begin + p.channels_per_item < p.channels ? begin + p.channels_per_item : p.channels;
    T* to = out + pixel * p.channels;
    const Aim<T> aim = take_aim(p, pixel);
    if (!aim.valid) {
      for (int64_t c = begin; c < end; ++c) to[c] = T(0);
      return;
    }
    T v[4];
    const Footprint<T> fine = footprint_at(p, aim, aim.level);
    const T* level = p.level_of(p.tex, p.mip, pixel, aim.level);
    if (!(aim.mix > T(0))) {
      for (int64_t c = begin; c < end; ++c) {
        gather(level, fine, c, v);
        to[c] = blend(fine, v);
      }
      return;
    }
    const Footprint<T> coarse = footprint_at(p, aim, aim.coarser);
    const T* coarser = p.level_of(p.tex, p.mip, pixel, aim.coarser);
    for (int64_t c = begin; c < end; ++c) {
      gather(level, fine, c, v);
      const T near = blend(fine, v);
      gather(coarser, coarse, c, v);
      to[c] = near + (blend(coarse, v) - near) * aim.mix;
    }
  }
};

// Gradients of tex and mip, summed over the pixels. An item is a pixel and some of its channels.
template <class T>
struct AddTexelGradients {
  TextureProblem<T> p;
  TextureGradients<T> grads;

  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t pixel = item / p.blocks();
    const int64_t begin = item % p.blocks() * p.channels_per_item;
    const int64_t end = begin + p.channels_per_item < p.channels ? begin + p.channels_per_item : p.channels;
    const Aim<T> aim = take_aim(p, pixel);
    if (!aim.valid) return;
    add(aim, pixel, begin, end, aim.level, T(1) - aim.mix);
    if (aim.mix > T(0)) add(aim, pixel, begin, end, aim.coarser, aim.mix);
  }

  DIFFRAST_HD void add(const Aim<T>& aim, int64_t pixel, int64_t begin, int64_t end, int level, T share) const {
    if (!(level == 0 ? grads.tex : grads.mip)) return;
    T* to = p.level_of(grads.tex, grads.mip, pixel, level);
    const Footprint<T> f = footprint_at(p, aim, level);
    T w[4];
    weights(f, w);
    for (int64_t c = begin; c < end; ++c) {
      const T grad = grads.out[pixel * p.channels + c] * share;
      for (int k = 0; k < 4; ++k) {
        if (f.at[k] >= 0) atomic_add(to + f.at[k] + c, w[k] * grad);
      }
    }
  }
};

// Gradients of uv, uv_da and bias. An item is a pixel, all channels.
template <class T>
struct CoordinateGradients {
  TextureProblem<T> p;
  TextureGradients<T> grads;

  DIFFRAST_HD void operator()(int64_t pixel) const {
    const Aim<T> aim = take_aim(p, pixel);
    T s = T(0), t = T(0), level = T(0);
    if (aim.valid && p.filter != Filter::nearest) sum_channels(aim, pixel, s, t, level);
    if (grads.bias) grads.bias[pixel] = level;
    if (p.cube()) {
      to_direction(aim, pixel, s, t, level);
    } else {
      to_plane(aim, pixel, s, t, level);
    }
  }

  // Gradients of s, t and the level.
  DIFFRAST_HD void sum_channels(const Aim<T>& aim, int64_t pixel, T& s, T& t, T& level) const {
    T v[4], along, down;
    const Footprint<T> fine = footprint_at(p, aim, aim.level);
    const Footprint<T> coarse = footprint_at(p, aim, aim.coarser);
    const T* near = p.level_of(p.tex, p.mip, pixel, aim.level);
    const T* far = p.level_of(p.tex, p.mip, pixel, aim.coarser);
    const T near_share = T(1) - aim.mix;
    for (int64_t c = 0; c < p.channels; ++c) {
      const T grad = grads.out[pixel * p.channels + c];
      gather(near, fine, c, v);
      slope(fine, v, along, down);
      const T value = blend(fine, v);
      s += grad * along * static_cast<T>(p.layout.width_of(aim.level)) * near_share;
      t += grad * down * static_cast<T>(p.layout.height_of(aim.level)) * near_share;
      if (!aim.level_moves) continue;
      gather(far, coarse, c, v);
      slope(coarse, v, along, down);
      level += grad * (blend(coarse, v) - value);
      s += grad * along * static_cast<T>(p.layout.width_of(aim.coarser)) * aim.mix;
      t += grad * down * static_cast<T>(p.layout.height_of(aim.coarser)) * aim.mix;
    }
  }

  DIFFRAST_HD void to_plane(const Aim<T>& aim, int64_t pixel, T s, T t, T level) const {
    if (grads.uv) {
      grads.uv[2 * pixel] = s;
      grads.uv[2 * pixel + 1] = t;
    }
    if (!grads.uv_da) return;
    for (int k = 0; k < 2; ++k) {
      grads.uv_da[4 * pixel + k] = level * aim.level_slope.s[k] * static_cast<T>(p.layout.width);
      grads.uv_da[4 * pixel + 2 + k] = level * aim.level_slope.t[k] * static_cast<T>(p.layout.height);
    }
  }

  // With a = +-uv[axis] the distance, s = (uv_s / a + 1) / 2. The level depends on uv too: its Jacobian is
  // ds/dX = (duv_s/dX - slope_s * da/dX) / (2 a).
  DIFFRAST_HD void to_direction(const Aim<T>& aim, int64_t pixel, T s, T t, T level) const {
    T uv[3] = {T(0), T(0), T(0)};
    T da[6] = {T(0), T(0), T(0), T(0), T(0), T(0)};
    if (aim.valid) {
      const CubeFace f = cube_face(aim.face);
      const CubePoint<T>& on = aim.on_cube;
      T slope_s = s / T(2), slope_t = t / T(2), distance = T(0);
      if (aim.level_moves && p.uv_da) {
        const CubeRates<T> r = cube_rates(on, p.uv_da + 6 * pixel);
        for (int k = 0; k < 2; ++k) {
          // Gradients of the rates, then of what they are made from.
          const T by_s = level * aim.level_slope.s[k] * static_cast<T>(p.layout.width) / (T(2) * on.distance);
          const T by_t = level * aim.level_slope.t[k] * static_cast<T>(p.layout.height) / (T(2) * on.distance);
          da[2 * f.s_axis + k] = f.s_sign * by_s;
          da[2 * f.t_axis + k] = f.t_sign * by_t;
          da[2 * f.axis + k] = -f.sign * (by_s * on.slope_s + by_t * on.slope_t);
          slope_s -= by_s * r.distance[k];
          slope_t -= by_t * r.distance[k];
          distance -= by_s * r.s[k] + by_t * r.t[k];
        }
      }
      uv[f.s_axis] = f.s_sign * slope_s / on.distance;
      uv[f.t_axis] = f.t_sign * slope_t / on.distance;
      uv[f.axis] = f.sign * (distance - (slope_s * on.slope_s + slope_t * on.slope_t) / on.distance);
    }
    if (grads.uv) {
      for (int k = 0; k < 3; ++k) grads.uv[3 * pixel + k] = uv[k];
    }
    if (grads.uv_da) {
      for (int k = 0; k < 6; ++k) grads.uv_da[6 * pixel + k] = da[k];
    }
  }
};

template <class Backend, class T>
void texture(Backend& backend, const TextureProblem<T>& p, T* out) {
  if (p.channels > 0) backend.each(p.batch * p.pixels * p.blocks(), SampleTexture<T>{p, out});
}

template <class Backend, class T>
void texture_backward(Backend& backend, const TextureProblem<T>& p, const TextureGradients<T>& grads) {
  if ((grads.tex || grads.mip) && p.channels > 0) {
    backend.each_in_order(p.batch * p.pixels * p.blocks(), AddTexelGradients<T>{p, grads});
  }
  if (grads.uv || grads.uv_da || grads.bias) backend.each(p.batch * p.pixels, CoordinateGradients<T>{p, grads});
}

}  // namespace texturing
}  // namespace diffrast
