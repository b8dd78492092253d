// texture and build_mips on the GPU as torch calls them.
#include "../texture_op.h"

#include "on_device.h"
#include "texture_run.h"

namespace diffrast {
namespace {

// The threads of a pixel with many channels stand side by side, each with 16 bytes of a texel.
constexpr int64_t kChannelsPerItem = 4;

Tensor texture_cuda(const Tensor& tex, const MaybeTensor& mip, const Tensor& uv, const MaybeTensor& uv_da,
                    const MaybeTensor& bias, std::string filter_mode, std::string boundary_mode, int64_t levels) {
  const OnDevice on(tex);
  return texture_op(tex, mip, uv, uv_da, bias, filter_mode, boundary_mode, levels,
                    [&](const TextureInputs& in, const Tensor& out) {
                      check_launch(run_texture(in.problem<float>(kChannelsPerItem), write<float>(out), on.stream),
                                   "texture");
                    });
}

TextureGradientTensors texture_backward_cuda(const Tensor& tex, const MaybeTensor& mip, const Tensor& uv,
                                             const MaybeTensor& uv_da, const MaybeTensor& bias,
                                             std::string filter_mode, std::string boundary_mode, int64_t levels,
                                             const Tensor& grad_out, bool texels, bool coordinates) {
  const OnDevice on(tex);
  return texture_backward_op(
      tex, mip, uv, uv_da, bias, filter_mode, boundary_mode, levels, grad_out, texels, coordinates,
      [&](const TextureInputs& in, const Tensor& out, const TextureGradientTensors& grads) {
        check_launch(run_texture_backward(in.problem<float>(kChannelsPerItem),
                                          texture_gradients<float>(in, out, texels, coordinates, grads), on.stream),
                     "texture_backward");
      });
}

Tensor build_mips_cuda(const Tensor& tex, int64_t levels) {
  const OnDevice on(tex);
  return build_mips_op(tex, levels, [&](const texturing::MipProblem& p, const Tensor& base, const Tensor& mip) {
    check_launch(run_build_mips(p, read<float>(base), write<float>(mip), on.stream), "build_mips");
  });
}

Tensor build_mips_backward_cuda(const Tensor& grad_mip, int64_t height, int64_t width, bool cube, int64_t levels) {
  const OnDevice on(grad_mip);
  return build_mips_backward_op(
      grad_mip, height, width, cube, levels,
      [&](const texturing::MipProblem& p, const Tensor& grad, const Tensor& grad_tex) {
        check_launch(run_build_mips_backward(p, read<float>(grad), write<float>(grad_tex), on.stream),
                     "build_mips_backward");
      });
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_IMPL(diffrast, CUDA, m) {
  m.impl("texture", TORCH_BOX(&diffrast::texture_cuda));
  m.impl("texture_backward", TORCH_BOX(&diffrast::texture_backward_cuda));
  m.impl("build_mips", TORCH_BOX(&diffrast::build_mips_cuda));
  m.impl("build_mips_backward", TORCH_BOX(&diffrast::build_mips_backward_cuda));
}
