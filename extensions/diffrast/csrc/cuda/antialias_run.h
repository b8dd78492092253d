// antialias on the GPU, for a binding that nvcc does not compile.
#pragma once

#include <cuda_runtime_api.h>

#include "../antialias.h"
#include "../topology.h"

namespace diffrast {

cudaError_t run_antialias(const AntialiasProblem<float>& problem, float* blends, float* out, cudaStream_t stream);
cudaError_t run_antialias_backward(const AntialiasProblem<float>& problem, float boost, const float* grad_out,
                                   float* blends, float* grad_color, float* grad_pos, cudaStream_t stream);
cudaError_t run_edge_keys(int64_t half_edges, const EdgeKeys& phase, cudaStream_t stream);
cudaError_t run_link_edges(int64_t half_edges, const LinkEdges& phase, cudaStream_t stream);

}  // namespace diffrast
