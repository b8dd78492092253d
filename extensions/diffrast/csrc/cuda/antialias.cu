// antialias on the GPU: its phases as grids.
#include "antialias_run.h"
#include "device.cuh"

namespace diffrast {

cudaError_t run_antialias(const AntialiasProblem<float>& problem, float* blends, float* out, cudaStream_t stream) {
  Device device{stream};
  antialias(device, problem, blends, out);
  return device.error;
}

cudaError_t run_antialias_backward(const AntialiasProblem<float>& problem, float boost, const float* grad_out,
                                   float* blends, float* grad_color, float* grad_pos, cudaStream_t stream) {
  Device device{stream};
  antialias_backward(device, problem, boost, grad_out, blends, grad_color, grad_pos);
  return device.error;
}

cudaError_t run_edge_keys(int64_t half_edges, const EdgeKeys& phase, cudaStream_t stream) {
  Device device{stream};
  device.each(half_edges, phase);
  return device.error;
}

cudaError_t run_link_edges(int64_t half_edges, const LinkEdges& phase, cudaStream_t stream) {
  Device device{stream};
  device.each(half_edges, phase);
  return device.error;
}

}  // namespace diffrast
