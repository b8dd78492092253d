// The GPU as a backend of phases: each phase is one grid-stride kernel on the stream of the call. Torch-free.
#pragma once

#include <cuda_runtime_api.h>

#include "../backend.h"

namespace diffrast {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 20;  // kernels step over their items, so that any number of them is right

template <class T>
struct Same {
  using Type = T;
};

// Not <<<...>>>: this form is plain C++, so that the tests can compile the kernels for the CPU and run them lane by
// lane (tests/cuda_on_host).
template <class... Params>
cudaError_t launch(void (*kernel)(Params...), int64_t blocks, cudaStream_t stream,
                   typename Same<Params>::Type... params) {
  void* pointers[] = {static_cast<void*>(&params)...};
  const unsigned grid = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
  // The kernel's type is told: before CUDA 13 it is not deduced, as the parameter is a pointer to const there.
  const cudaError_t error =
      cudaLaunchKernel<void(Params...)>(kernel, dim3(grid), dim3(kThreads), pointers, 0, stream);
  // Reported here: it must not stay behind for the next caller of CUDA to find.
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

template <class Phase>
__global__ void run_phase(int64_t items, Phase phase) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < items; i += stride) phase(i);
}

struct Device {
  cudaStream_t stream;
  cudaError_t error = cudaSuccess;  // the first that went wrong; later phases are then left out

  template <class Phase>
  void each(int64_t items, const Phase& phase) {
    if (items <= 0 || error != cudaSuccess) return;
    error = launch(run_phase<Phase>, (items + kThreads - 1) / kThreads, stream, items, phase);
  }
  // The device adds with atomics: the order, and so the last bits of a sum, may differ between runs.
  template <class Phase>
  void each_in_order(int64_t items, const Phase& phase) {
    each(items, phase);
  }
  void clear(void* at, int byte, size_t bytes) {
    if (error == cudaSuccess && bytes) error = cudaMemsetAsync(at, byte, bytes, stream);
  }
};

}  // namespace diffrast
