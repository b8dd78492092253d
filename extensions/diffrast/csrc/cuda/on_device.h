// The GPU side of a call: its tensor's device made current, its stream, its launches checked.
#pragma once

#include <cuda_runtime_api.h>

#include "../torch_api.h"

namespace diffrast {

struct OnDevice {
  explicit OnDevice(const Tensor& t) : guard(t.get_device_index()) {
    void* raw = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &raw));
    stream = static_cast<cudaStream_t>(raw);
  }
  torch::stable::accelerator::DeviceGuard guard;
  cudaStream_t stream = nullptr;
};

// A launch that fails leaves the output as it was: it must not pass in silence.
inline void check_launch(cudaError_t error, const char* what) {
  DIFFRAST_CHECK(error == cudaSuccess, "diffrast.", what, ": CUDA error: ", cudaGetErrorString(error),
                 error == cudaErrorNoKernelImageForDevice
                     ? "; this build holds no code for this GPU: rebuild with its compute capability in "
                       "TORCH_CUDA_ARCH_LIST"
                     : "");
}

}  // namespace diffrast
