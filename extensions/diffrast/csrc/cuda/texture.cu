// texture and build_mips on the GPU: their phases as grids.
#include "device.cuh"
#include "texture_run.h"

namespace diffrast {

cudaError_t run_texture(const texturing::TextureProblem<float>& problem, float* out, cudaStream_t stream) {
  Device device{stream};
  texturing::texture(device, problem, out);
  return device.error;
}

cudaError_t run_texture_backward(const texturing::TextureProblem<float>& problem,
                                 const texturing::TextureGradients<float>& gradients, cudaStream_t stream) {
  Device device{stream};
  texturing::texture_backward(device, problem, gradients);
  return device.error;
}

cudaError_t run_build_mips(const texturing::MipProblem& problem, const float* tex, float* mip, cudaStream_t stream) {
  Device device{stream};
  texturing::build_mips(device, problem, tex, mip);
  return device.error;
}

cudaError_t run_build_mips_backward(const texturing::MipProblem& problem, const float* grad_mip, float* grad_tex,
                                    cudaStream_t stream) {
  Device device{stream};
  texturing::build_mips_backward(device, problem, grad_mip, grad_tex);
  return device.error;
}

}  // namespace diffrast
