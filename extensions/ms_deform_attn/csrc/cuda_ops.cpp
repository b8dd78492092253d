// _C_cuda: the CUDA kernels of the operators that _C defines.
#include <cuda_runtime_api.h>

#include "cuda/kernels.h"
#include "ops.h"

#ifndef MSDA_STABLE
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace msda {
namespace {

#ifdef MSDA_STABLE
// Makes the tensor's device current for the call and gives its current stream.
struct OnDevice {
  explicit OnDevice(const Tensor& t) : guard(t.get_device_index()) {
    void* raw = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &raw));
    stream = static_cast<cudaStream_t>(raw);
  }
  torch::stable::accelerator::DeviceGuard guard;
  cudaStream_t stream = nullptr;
};
#else
struct OnDevice {
  explicit OnDevice(const Tensor& t)
      : guard(t.device()), stream(c10::cuda::getCurrentCUDAStream(t.get_device()).stream()) {}
  c10::cuda::CUDAGuard guard;
  cudaStream_t stream;
};
#endif

// A launch that fails leaves the output as it was: it must not pass in silence.
void check_launch(cudaError_t error, const char* what) {
  MSDA_CHECK(error == cudaSuccess, "ms_deform_attn: CUDA error in ", what, ": ",
             cudaGetErrorString(error),
             error == cudaErrorNoKernelImageForDevice
                 ? "; this build holds no code for this GPU: rebuild with its compute capability "
                   "in TORCH_CUDA_ARCH_LIST"
                 : "");
}

Tensor forward(const Tensor& value, const Tensor& spatial_shapes, const Tensor& level_start_index,
               const Tensor& sampling_loc, const Tensor& attn_weight) {
  const OnDevice on(value);
  return forward_op(value, spatial_shapes, level_start_index, sampling_loc, attn_weight,
                    [&](const Problem& p, void* out) {
                      check_launch(cuda::forward(p, out, on.stream), "forward");
                    });
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& value, const Tensor& spatial_shapes,
                                            const Tensor& level_start_index,
                                            const Tensor& sampling_loc, const Tensor& attn_weight,
                                            const Tensor& grad_output) {
  const OnDevice on(value);
  return backward_op(value, spatial_shapes, level_start_index, sampling_loc, attn_weight,
                     grad_output, [&](const Problem& p, const Gradients& grads) {
                       check_launch(cuda::backward(p, grads, on.stream), "backward");
                     });
}

}  // namespace
}  // namespace msda

MSDA_IMPL(ms_deform_attn, CUDA, m) {
  m.impl("forward", MSDA_FN(msda::forward));
  m.impl("backward", MSDA_FN(msda::backward));
}
