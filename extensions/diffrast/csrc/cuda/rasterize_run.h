// rasterize on the GPU, for a binding that nvcc does not compile.
#pragma once

#include <cuda_runtime_api.h>

#include "../rasterize.h"

namespace diffrast {

// Bytes of scratch that run_rasterize needs for its sums.
cudaError_t rasterize_scratch(const RasterizeProblem<float>& problem, size_t* bytes);
cudaError_t run_rasterize(const RasterizeProblem<float>& problem, void* scratch, size_t bytes, cudaStream_t stream);
cudaError_t run_rasterize_backward(const RasterizeGradients<float>& problem, cudaStream_t stream);

}  // namespace diffrast
