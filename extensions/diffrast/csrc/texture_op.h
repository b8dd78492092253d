// The operators texture, build_mips and their gradients between torch and the phases: check, make contiguous, call.
#pragma once

#include <string>
#include <tuple>

#include "texture.h"
#include "torch_api.h"

namespace diffrast {

using MaybeTensor = std::optional<Tensor>;

inline texturing::Filter filter_named(const std::string& name) {
  if (name == "nearest") return texturing::Filter::nearest;
  if (name == "linear") return texturing::Filter::linear;
  if (name == "linear-mipmap-nearest") return texturing::Filter::mip_nearest;
  DIFFRAST_CHECK(name == "linear-mipmap-linear", "diffrast.texture: filter_mode must be nearest, linear, ",
                 "linear-mipmap-nearest or linear-mipmap-linear, got ", name);
  return texturing::Filter::mip_linear;
}

inline texturing::Boundary boundary_named(const std::string& name) {
  if (name == "wrap") return texturing::Boundary::wrap;
  if (name == "clamp") return texturing::Boundary::clamp;
  if (name == "zero") return texturing::Boundary::zero;
  DIFFRAST_CHECK(name == "cube", "diffrast.texture: boundary_mode must be wrap, clamp, zero or cube, got ", name);
  return texturing::Boundary::cube;
}

// (N, H, W, C), or (N, 6, S, S, C) for a cube; with so many levels below it.
inline texturing::MipLayout check_tex(const char* op, const Tensor& tex, bool cube, int64_t levels) {
  check_floating(op, "tex", tex);
  check_shape(op, "tex", tex, cube ? Sizes{-1, 6, -1, -1, -1} : Sizes{-1, -1, -1, -1},
              cube ? "(N, 6, S, S, C)" : "(N, H, W, C)");
  const int64_t height = tex.size(-3), width = tex.size(-2);
  DIFFRAST_CHECK(!cube || height == width, "diffrast.", op, ": tex must have square faces, got ", show(sizes(tex)));
  DIFFRAST_CHECK(height > 0 && width > 0 && height <= texturing::kMaxSide && width <= texturing::kMaxSide, "diffrast.",
                 op, ": tex must have sides from 1 to 2^24, got ", show(sizes(tex)));
  DIFFRAST_CHECK(levels >= 0 && texturing::can_halve(height, width, levels), "diffrast.", op, ": tex of ", height,
                 " x ", width, " cannot be halved ", levels, " times: each side must be even or 1");
  return texturing::mip_layout(height, width, cube ? texturing::kCubeFaces : 1, levels);
}

// The tensors of one call in the form the phases need, kept alive with the sizes that describe them.
struct TextureInputs {
  Tensor tex, uv;
  MaybeTensor mip, uv_da, bias;
  texturing::MipLayout layout;
  texturing::Filter filter;
  texturing::Boundary boundary;

  int64_t channels() const { return tex.size(-1); }

  template <class T>
  texturing::TextureProblem<T> problem(int64_t channels_per_item) const {
    return {read<T>(tex), mip ? read<T>(*mip) : nullptr, read<T>(uv), uv_da ? read<T>(*uv_da) : nullptr,
            bias ? read<T>(*bias) : nullptr, uv.size(0), uv.size(1) * uv.size(2), tex.size(0), channels(),
            channels_per_item, layout, filter, boundary};
  }
};

inline TextureInputs prepare_texture(const Tensor& tex, const MaybeTensor& mip, const Tensor& uv,
                                     const MaybeTensor& uv_da, const MaybeTensor& bias, const std::string& filter_mode,
                                     const std::string& boundary_mode, int64_t levels) {
  const char* op = "texture";
  const texturing::Filter filter = filter_named(filter_mode);
  const texturing::Boundary boundary = boundary_named(boundary_mode);
  const bool cube = boundary == texturing::Boundary::cube;
  const bool mipmapped = filter == texturing::Filter::mip_nearest || filter == texturing::Filter::mip_linear;
  const texturing::MipLayout layout = check_tex(op, tex, cube, levels);
  check_same_dtype(op, "uv", uv, "tex", tex);
  check_device(op, "uv", uv, tex);
  check_shape(op, "uv", uv, {-1, -1, -1, cube ? 3 : 2}, cube ? "(N, h, w, 3)" : "(N, h, w, 2)");
  const Sizes at = sizes(uv);
  DIFFRAST_CHECK(tex.size(0) == 1 || tex.size(0) == at[0],
                 "diffrast.texture: tex must have a batch of 1 or that of uv, ", at[0], ", got ", show(sizes(tex)));
  if (mip) {
    check_same_dtype(op, "mip", *mip, "tex", tex);
    check_device(op, "mip", *mip, tex);
    check_shape(op, "mip", *mip, {tex.size(0), layout.start[layout.levels + 1], tex.size(-1)},
                "(N of tex, texels of all levels, C of tex)");
  }
  DIFFRAST_CHECK(mip || levels == 0, "diffrast.texture: mip must be given where there are levels");
  if (uv_da) {
    check_same_dtype(op, "uv_da", *uv_da, "tex", tex);
    check_device(op, "uv_da", *uv_da, tex);
    check_shape(op, "uv_da", *uv_da, {at[0], at[1], at[2], 2 * at[3]},
                cube ? "(N, h, w, 6) beside uv" : "(N, h, w, 4) beside uv");
  }
  if (bias) {
    check_same_dtype(op, "mip_level_bias", *bias, "tex", tex);
    check_device(op, "mip_level_bias", *bias, tex);
    check_shape(op, "mip_level_bias", *bias, {at[0], at[1], at[2]}, "(N, h, w) beside uv");
  }
  DIFFRAST_CHECK(mipmapped || (!mip && !uv_da && !bias && levels == 0),
                 "diffrast.texture: mip, uv_da and mip_level_bias must be None without mipmaps");
  const auto flat = [](const MaybeTensor& t) { return t ? MaybeTensor(contiguous(*t)) : std::nullopt; };
  return {contiguous(tex), contiguous(uv), flat(mip), flat(uv_da), flat(bias), layout, filter, boundary};
}

// run(inputs, out)
template <class Run>
Tensor texture_op(const Tensor& tex, const MaybeTensor& mip, const Tensor& uv, const MaybeTensor& uv_da,
                  const MaybeTensor& bias, const std::string& filter_mode, const std::string& boundary_mode,
                  int64_t levels, const Run& run) {
  const TextureInputs in = prepare_texture(tex, mip, uv, uv_da, bias, filter_mode, boundary_mode, levels);
  const Tensor out = empty(in.uv, {uv.size(0), uv.size(1), uv.size(2), in.channels()});
  run(in, out);
  return out;
}

// Gradients of tex, mip, uv, uv_da and bias; of shape (0,) where not asked for or where there is no such input.
using TextureGradientTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class T>
texturing::TextureGradients<T> texture_gradients(const TextureInputs& in, const Tensor& out, bool texels,
                                                 bool coordinates, const TextureGradientTensors& grads) {
  const auto [tex, mip, uv, uv_da, bias] = grads;
  return {read<T>(out), texels ? write<T>(tex) : nullptr, texels && in.mip ? write<T>(mip) : nullptr,
          coordinates ? write<T>(uv) : nullptr, coordinates && in.uv_da ? write<T>(uv_da) : nullptr,
          coordinates && in.bias ? write<T>(bias) : nullptr};
}

// run(inputs, grad_out, grads)
template <class Run>
TextureGradientTensors texture_backward_op(const Tensor& tex, const MaybeTensor& mip, const Tensor& uv,
                                           const MaybeTensor& uv_da, const MaybeTensor& bias,
                                           const std::string& filter_mode, const std::string& boundary_mode,
                                           int64_t levels, const Tensor& grad_out, bool texels, bool coordinates,
                                           const Run& run) {
  const char* op = "texture";
  const TextureInputs in = prepare_texture(tex, mip, uv, uv_da, bias, filter_mode, boundary_mode, levels);
  check_same_dtype(op, "grad_out", grad_out, "tex", tex);
  check_device(op, "grad_out", grad_out, tex);
  check_shape(op, "grad_out", grad_out, {uv.size(0), uv.size(1), uv.size(2), in.channels()}, "(N, h, w, C)");
  // The gradients of texels are sums, so they start at zero; the others are written once.
  const auto summed = [&](const MaybeTensor& t) { return zeros(in.tex, t && texels ? sizes(*t) : Sizes{0}); };
  const auto written = [&](const MaybeTensor& t) { return empty(in.tex, t && coordinates ? sizes(*t) : Sizes{0}); };
  const TextureGradientTensors grads(summed(in.tex), summed(in.mip), written(in.uv), written(in.uv_da),
                                     written(in.bias));
  run(in, contiguous(grad_out), grads);
  return grads;
}

// run(problem, tex, mip)
template <class Run>
Tensor build_mips_op(const Tensor& tex, int64_t levels, const Run& run) {
  const texturing::MipLayout layout = check_tex("build_mips", tex, tex.dim() == 5, levels);
  const int64_t batch = tex.size(0), channels = tex.size(-1);
  const Tensor mip = empty(tex, {batch, layout.start[layout.levels + 1], channels});
  run(texturing::MipProblem{layout, batch, channels}, contiguous(tex), mip);
  return mip;
}

// run(problem, grad_mip, grad_tex)
template <class Run>
Tensor build_mips_backward_op(const Tensor& grad_mip, int64_t height, int64_t width, bool cube, int64_t levels,
                              const Run& run) {
  const char* op = "build_mips_backward";
  check_floating(op, "grad_mip", grad_mip);
  DIFFRAST_CHECK(height > 0 && width > 0 && height <= texturing::kMaxSide && width <= texturing::kMaxSide &&
                     levels >= 0 && texturing::can_halve(height, width, levels) && (!cube || height == width),
                 "diffrast.build_mips_backward: there is no texture of ", height, " x ", width, " with ", levels,
                 " levels");
  const texturing::MipLayout layout =
      texturing::mip_layout(height, width, cube ? texturing::kCubeFaces : 1, levels);
  check_shape(op, "grad_mip", grad_mip, {-1, layout.start[layout.levels + 1], -1}, "(N, texels of all levels, C)");
  const int64_t batch = grad_mip.size(0), channels = grad_mip.size(2);
  const Tensor grad_tex = empty(
      grad_mip, cube ? Sizes{batch, 6, height, width, channels} : Sizes{batch, height, width, channels});
  run(texturing::MipProblem{layout, batch, channels}, contiguous(grad_mip), grad_tex);
  return grad_tex;
}

}  // namespace diffrast
