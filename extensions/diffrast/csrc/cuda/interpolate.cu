// interpolate on the GPU: its phases as grids.
#include "device.cuh"
#include "interpolate_run.h"

namespace diffrast {

cudaError_t run_interpolate(const InterpolateProblem<float>& problem, float* out, float* out_da, cudaStream_t stream) {
  Device device{stream};
  interpolate(device, problem, out, out_da);
  return device.error;
}

cudaError_t run_interpolate_backward(const InterpolateProblem<float>& problem,
                                     const InterpolateGradients<float>& gradients, cudaStream_t stream) {
  Device device{stream};
  interpolate_backward(device, problem, gradients);
  return device.error;
}

}  // namespace diffrast
