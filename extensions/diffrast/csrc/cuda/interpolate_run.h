// interpolate on the GPU, for a binding that nvcc does not compile.
#pragma once

#include <cuda_runtime_api.h>

#include "../interpolate.h"

namespace diffrast {

cudaError_t run_interpolate(const InterpolateProblem<float>& problem, float* out, float* out_da, cudaStream_t stream);
cudaError_t run_interpolate_backward(const InterpolateProblem<float>& problem,
                                     const InterpolateGradients<float>& gradients, cudaStream_t stream);

}  // namespace diffrast
