// texture and build_mips on the GPU, for a binding that nvcc does not compile.
#pragma once

#include <cuda_runtime_api.h>

#include "../texture.h"

namespace diffrast {

cudaError_t run_texture(const texturing::TextureProblem<float>& problem, float* out, cudaStream_t stream);
cudaError_t run_texture_backward(const texturing::TextureProblem<float>& problem,
                                 const texturing::TextureGradients<float>& gradients, cudaStream_t stream);
cudaError_t run_build_mips(const texturing::MipProblem& problem, const float* tex, float* mip, cudaStream_t stream);
cudaError_t run_build_mips_backward(const texturing::MipProblem& problem, const float* grad_mip, float* grad_tex,
                                    cudaStream_t stream);

}  // namespace diffrast
