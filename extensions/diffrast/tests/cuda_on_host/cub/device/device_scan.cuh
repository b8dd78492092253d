// A stand-in for the one thing of CUB that is used.
#pragma once

#include <cuda_runtime_api.h>

namespace cub {

struct DeviceScan {
  template <class T>
  static cudaError_t ExclusiveSum(void* scratch, size_t& bytes, const T* from, T* to, int count,
                                  cudaStream_t = nullptr) {
    if (scratch == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    T sum = 0;
    for (int i = 0; i < count; ++i) {
      const T own = from[i];
      to[i] = sum;
      sum += own;
    }
    return cudaSuccess;
  }
};

}  // namespace cub
