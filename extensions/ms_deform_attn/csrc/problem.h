// What a kernel is given: raw pointers and sizes, nothing of torch or Python.
// The CPU and the CUDA kernels take the same struct; the bindings fill it.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MSDA_INLINE __host__ __device__ __forceinline__
#else
#define MSDA_INLINE inline
#endif

namespace msda {

// Element type of `value`, `out` and `grad_out`. Everything else floating is in
// the accumulation type: float, or double when the element type is f64.
enum class DType : int { f32, f64, f16, bf16 };

struct Problem {
  DType dtype;
  int64_t batch;     // N
  int64_t rows;      // S, the sum of H*W over the levels
  int64_t heads;     // M
  int64_t channels;  // D, of one head
  int64_t queries;   // Lq
  int64_t levels;    // L
  int64_t points;    // P
  const void* value;      // (N, S, M, D)           element type
  const int64_t* shapes;  // (L, 2) as (H, W)
  const int64_t* starts;  // (L,)   first row of each level
  const void* loc;        // (N, Lq, M, L, P, 2)    accumulation type
  const void* weight;     // (N, Lq, M, L, P)       accumulation type

  MSDA_INLINE int64_t items() const { return batch * queries * heads; }
};

struct Gradients {
  const void* out;  // (N, Lq, M*D)  element type; the only input here
  void* value;      // as value, accumulation type, zeroed by the caller
  void* loc;        // as loc
  void* weight;     // as weight
};

}  // namespace msda
