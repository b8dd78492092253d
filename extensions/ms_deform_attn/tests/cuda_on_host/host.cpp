// The CUDA kernels behind a C interface, for ctypes.
#include "../../csrc/cuda/kernels.h"

#include <cstdio>
#include <exception>

static msda::Problem problem(int dtype, const int64_t* sizes, void* const* tensors) {
  msda::Problem p;
  p.dtype = static_cast<msda::DType>(dtype);
  p.batch = sizes[0];
  p.rows = sizes[1];
  p.heads = sizes[2];
  p.channels = sizes[3];
  p.queries = sizes[4];
  p.levels = sizes[5];
  p.points = sizes[6];
  p.value = tensors[0];
  p.shapes = static_cast<const int64_t*>(tensors[1]);
  p.starts = static_cast<const int64_t*>(tensors[2]);
  p.loc = tensors[3];
  p.weight = tensors[4];
  return p;
}

template <class Run>
static int guarded(Run run) {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_on_host: %s\n", error.what());
    return -1;
  }
}

extern "C" int forward(int dtype, const int64_t* sizes, void* const* tensors, void* out) {
  return guarded([&] { return msda::cuda::forward(problem(dtype, sizes, tensors), out, nullptr); });
}

extern "C" int backward(int dtype, const int64_t* sizes, void* const* tensors, void* const* grads) {
  const msda::Gradients g{grads[0], grads[1], grads[2], grads[3]};
  return guarded([&] { return msda::cuda::backward(problem(dtype, sizes, tensors), g, nullptr); });
}
