// The CUDA kernel of the op.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAStream.h>

__global__ void multiply(const float* value, const float* weight, float* out, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) out[i] = value[i] * weight[i];
}

at::Tensor toy_attn_cuda_forward(const at::Tensor& value, const at::Tensor& weight) {
  const at::Tensor values = value.contiguous(), weights = weight.contiguous();
  at::Tensor out = at::empty_like(values);
  const int64_t count = out.numel();
  if (count > 0) {
    const auto blocks = static_cast<unsigned>((count + 255) / 256);
    multiply<<<blocks, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        values.const_data_ptr<float>(), weights.const_data_ptr<float>(), out.mutable_data_ptr<float>(), count);
  }
  return out;
}
