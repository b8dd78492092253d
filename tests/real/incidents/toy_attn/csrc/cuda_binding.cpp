// Registers the CUDA kernel, which forward.cu defines.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

at::Tensor toy_attn_cuda_forward(const at::Tensor& value, const at::Tensor& weight);

TORCH_LIBRARY_IMPL(toy_attn, CUDA, library) {
  library.impl("forward", &toy_attn_cuda_forward);
}
