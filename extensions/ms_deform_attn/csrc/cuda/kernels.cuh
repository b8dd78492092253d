// What the two kernels share: types, vector access, the shape of the launch.
//
// A *team* of lanes (a power of two, at most a warp) works on one item: one
// query of one head of one batch element. Each lane takes a vector of V
// neighbouring channels, so a corner is read in whole 16-byte pieces, and the
// location and the weight are loaded once a team and not once a channel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "../problem.h"
#include "../sample.h"

namespace msda {
namespace cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

template <typename T>
struct AccOf {
  using type = float;
};
template <>
struct AccOf<double> {
  using type = double;
};

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ double widen(double v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ __forceinline__ void narrow(float v, float& to) { to = v; }
__device__ __forceinline__ void narrow(double v, double& to) { to = v; }
__device__ __forceinline__ void narrow(float v, __half& to) { to = __float2half_rn(v); }
__device__ __forceinline__ void narrow(float v, __nv_bfloat16& to) { to = __float2bfloat16_rn(v); }

// V elements that move as one aligned access.
template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
  T lane[V];
};

template <typename T, int V, typename A>
__device__ __forceinline__ void load(const T* from, A to[V]) {
  const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = widen(pack.lane[i]);
}

// A corner outside the level reads as zero.
template <typename T, int V, typename A>
__device__ __forceinline__ void load_corner(const T* plane, int64_t row, int64_t stride, A to[V]) {
  if (row >= 0) {
    load<T, V, A>(plane + row * stride, to);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = static_cast<A>(0);
  }
}

// An item's place, worked out once a team.
struct Item {
  int64_t plane;   // offset of (n, row 0, head, channel 0) in value
  int64_t points;  // offset of its first point in weight; twice that in loc
  int64_t out;     // offset of its first channel in out
};

__device__ __forceinline__ Item item_at(const Problem& p, int64_t index) {
  const int64_t head = index % p.heads;
  const int64_t n = index / (p.heads * p.queries);
  return {(n * p.rows * p.heads + head) * p.channels, index * p.levels * p.points,
          index * p.channels};
}

struct Team {
  int lanes;  // of one team
  int blocks;
};

// Enough lanes for the channels, and no more blocks than a grid may have: the
// kernels step over the items, so that any number of them is right.
inline Team team_for(const Problem& p, int vector) {
  int lanes = 1;
  while (lanes < kWarp && static_cast<int64_t>(lanes) * vector < p.channels) lanes *= 2;
  const int64_t teams = kThreads / lanes;
  const int64_t blocks = (p.items() + teams - 1) / teams;
  return {lanes, static_cast<int>(std::min<int64_t>(blocks, int64_t{1} << 20))};
}

// Not <<<...>>>: this form is plain C++, so the tests can compile the kernels for
// the CPU and run them lane by lane (tests/cuda_on_host).
template <typename... Params>
inline cudaError_t launch(void (*kernel)(Params...), const Team& team, cudaStream_t stream,
                          Params... params) {
  void* pointers[] = {static_cast<void*>(&params)...};
  // The kernel's type is told: before CUDA 13 it is not deduced, as the parameter is a pointer to const there.
  const cudaError_t error = cudaLaunchKernel<void(Params...)>(
      kernel, dim3(team.blocks), dim3(kThreads), pointers, 0, stream);
  // Reported here: it must not stay behind for the next caller of CUDA to find.
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Whether rows of `channels` elements can be read in 16-byte pieces.
template <typename T>
inline bool vectorises(const void* pointer, int64_t channels) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 &&
         channels % static_cast<int64_t>(16 / sizeof(T)) == 0;
}

}  // namespace cuda
}  // namespace msda
