#include "kernels.cuh"
#include "kernels.h"

namespace msda {
namespace cuda {
namespace {

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Problem p, T* out, int lanes) {
  using A = typename AccOf<T>::type;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t teams = kThreads / lanes;
  const int64_t stride = p.heads * p.channels;

  for (int64_t index = blockIdx.x * teams + threadIdx.x / lanes; index < p.items();
       index += gridDim.x * teams) {
    const Item item = item_at(p, index);
    const T* __restrict__ plane = static_cast<const T*>(p.value) + item.plane;
    const A* __restrict__ loc = static_cast<const A*>(p.loc) + 2 * item.points;
    const A* __restrict__ weight = static_cast<const A*>(p.weight) + item.points;

    for (int64_t c = static_cast<int64_t>(lane) * V; c < p.channels; c += lanes * V) {
      A acc[V] = {};
      int64_t point = 0;
      for (int64_t l = 0; l < p.levels; ++l) {
        const Level level = level_at(p.shapes, p.starts, l);
        if (!fits(level, p.rows)) {
#pragma unroll
          for (int i = 0; i < V; ++i) acc[i] = static_cast<A>(NAN);
          break;
        }
        for (int64_t k = 0; k < p.points; ++k, ++point) {
          const Sample<A> s = locate(loc[2 * point], loc[2 * point + 1], level);
          if (!s.hit) continue;
          A coef[4], v0[V], v1[V], v2[V], v3[V];
          corner_weights(s, coef);
          load_corner<T, V>(plane + c, s.row[0], stride, v0);
          load_corner<T, V>(plane + c, s.row[1], stride, v1);
          load_corner<T, V>(plane + c, s.row[2], stride, v2);
          load_corner<T, V>(plane + c, s.row[3], stride, v3);
          const A w = weight[point];
#pragma unroll
          for (int i = 0; i < V; ++i) acc[i] += w * blend(coef, v0[i], v1[i], v2[i], v3[i]);
        }
      }
      Pack<T, V> pack;
#pragma unroll
      for (int i = 0; i < V; ++i) narrow(acc[i], pack.lane[i]);
      *reinterpret_cast<Pack<T, V>*>(out + item.out + c) = pack;
    }
  }
}

template <typename T>
cudaError_t forward_as(const Problem& p, void* out, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  T* to = static_cast<T*>(out);
  if (vectorises<T>(p.value, p.channels) && vectorises<T>(out, p.channels)) {
    const Team team = team_for(p, V);
    return launch(forward_kernel<T, V>, team, stream, p, to, team.lanes);
  }
  const Team team = team_for(p, 1);
  return launch(forward_kernel<T, 1>, team, stream, p, to, team.lanes);
}

}  // namespace

cudaError_t forward(const Problem& p, void* out, cudaStream_t stream) {
  if (p.items() == 0 || p.channels == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::f32: return forward_as<float>(p, out, stream);
    case DType::f64: return forward_as<double>(p, out, stream);
    case DType::f16: return forward_as<__half>(p, out, stream);
    case DType::bf16: return forward_as<__nv_bfloat16>(p, out, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace cuda
}  // namespace msda
