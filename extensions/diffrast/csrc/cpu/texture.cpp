// texture and build_mips on the CPU, and the schemas of their operators.
#include "../texture_op.h"

namespace diffrast {
namespace {

// Few items a pixel: each finds the texels anew.
constexpr int64_t kChannelsPerItem = 16;

Tensor texture_cpu(const Tensor& tex, const MaybeTensor& mip, const Tensor& uv, const MaybeTensor& uv_da,
                   const MaybeTensor& bias, std::string filter_mode, std::string boundary_mode, int64_t levels) {
  return texture_op(tex, mip, uv, uv_da, bias, filter_mode, boundary_mode, levels,
                    [](const TextureInputs& in, const Tensor& out) {
                      with_floating(in.tex, [&](auto type) {
                        using T = decltype(type);
                        const Host backend = host();
                        texturing::texture(backend, in.problem<T>(kChannelsPerItem), write<T>(out));
                      });
                    });
}

TextureGradientTensors texture_backward_cpu(const Tensor& tex, const MaybeTensor& mip, const Tensor& uv,
                                            const MaybeTensor& uv_da, const MaybeTensor& bias,
                                            std::string filter_mode, std::string boundary_mode, int64_t levels,
                                            const Tensor& grad_out, bool texels, bool coordinates) {
  return texture_backward_op(
      tex, mip, uv, uv_da, bias, filter_mode, boundary_mode, levels, grad_out, texels, coordinates,
      [&](const TextureInputs& in, const Tensor& out, const TextureGradientTensors& grads) {
        with_floating(in.tex, [&](auto type) {
          using T = decltype(type);
          const Host backend = host();
          texturing::texture_backward(backend, in.problem<T>(kChannelsPerItem),
                                      texture_gradients<T>(in, out, texels, coordinates, grads));
        });
      });
}

Tensor build_mips_cpu(const Tensor& tex, int64_t levels) {
  return build_mips_op(tex, levels, [](const texturing::MipProblem& p, const Tensor& base, const Tensor& mip) {
    with_floating(base, [&](auto type) {
      using T = decltype(type);
      const Host backend = host();
      texturing::build_mips(backend, p, read<T>(base), write<T>(mip));
    });
  });
}

Tensor build_mips_backward_cpu(const Tensor& grad_mip, int64_t height, int64_t width, bool cube, int64_t levels) {
  return build_mips_backward_op(
      grad_mip, height, width, cube, levels,
      [](const texturing::MipProblem& p, const Tensor& grad, const Tensor& grad_tex) {
        with_floating(grad, [&](auto type) {
          using T = decltype(type);
          const Host backend = host();
          texturing::build_mips_backward(backend, p, read<T>(grad), write<T>(grad_tex));
        });
      });
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_FRAGMENT(diffrast, m) {
  m.def(
      "texture(Tensor tex, Tensor? mip, Tensor uv, Tensor? uv_da, Tensor? mip_level_bias, str filter_mode, "
      "str boundary_mode, SymInt levels) -> Tensor");
  m.def(
      "texture_backward(Tensor tex, Tensor? mip, Tensor uv, Tensor? uv_da, Tensor? mip_level_bias, "
      "str filter_mode, str boundary_mode, SymInt levels, Tensor grad_out, bool texels, bool coordinates) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("build_mips(Tensor tex, SymInt levels) -> Tensor");
  m.def("build_mips_backward(Tensor grad_mip, SymInt height, SymInt width, bool cube, SymInt levels) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(diffrast, CPU, m) {
  m.impl("texture", TORCH_BOX(&diffrast::texture_cpu));
  m.impl("texture_backward", TORCH_BOX(&diffrast::texture_backward_cpu));
  m.impl("build_mips", TORCH_BOX(&diffrast::build_mips_cpu));
  m.impl("build_mips_backward", TORCH_BOX(&diffrast::build_mips_backward_cpu));
}
