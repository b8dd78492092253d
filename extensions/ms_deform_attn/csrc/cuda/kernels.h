// CUDA kernels: pointers, sizes and a stream in, an error code out. Includes no
// header of torch or Python, so one object serves every torch and Python.
#pragma once

#include <cuda_runtime_api.h>

#include "../problem.h"

namespace msda {
namespace cuda {

// Both launch on `stream` of the current device, never wait, and return the
// launch error. A level that does not fit in value gives NaN: it cannot be
// refused by name without waiting for the device.
cudaError_t forward(const Problem& problem, void* out, cudaStream_t stream);
cudaError_t backward(const Problem& problem, const Gradients& grads, cudaStream_t stream);

}  // namespace cuda
}  // namespace msda
