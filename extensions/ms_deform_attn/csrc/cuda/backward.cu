#include "kernels.cuh"
#include "kernels.h"

namespace msda {
namespace cuda {
namespace {

__device__ __forceinline__ void add_one(float* to, float value) { atomicAdd(to, value); }

__device__ __forceinline__ void add_one(double* to, double value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 600
  atomicAdd(to, value);
#else
  // No atomic addition of doubles there: tried again until nothing came in between.
  unsigned long long* word = reinterpret_cast<unsigned long long*>(to);
  unsigned long long found = *word, held;
  do {
    held = found;
    const double sum = __longlong_as_double(static_cast<long long>(held)) + value;
    found = atomicCAS(word, held, static_cast<unsigned long long>(__double_as_longlong(sum)));
  } while (found != held);
#endif
}

// grad_value is the one result that several teams add to. It is summed in the
// accumulation type, never in 16 bits; f32 goes out four at a time where the
// hardware can (sm_90 on).
template <int V, typename A>
__device__ __forceinline__ void add_to(A* to, const A value[V]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int step = sizeof(A) == 4 && V % 4 == 0 ? 4 : 1;
#else
  constexpr int step = 1;
#endif
#pragma unroll
  for (int i = 0; i < V; i += step) {
    if constexpr (step == 4) {
      atomicAdd(reinterpret_cast<float4*>(to + i),
                make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]));
    } else {
      add_one(to + i, value[i]);
    }
  }
}

// Sum over the team; every lane gets it. `mask` names the team's lanes, since
// the other teams of the warp may be elsewhere.
template <typename A>
__device__ __forceinline__ A team_sum(A value, int lanes, unsigned mask) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(mask, value, step);
  }
  return value;
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Problem p, Gradients g, int lanes) {
  using A = typename AccOf<T>::type;
  const int lane = threadIdx.x & (lanes - 1);
  const unsigned first_lane = (threadIdx.x & (kWarp - 1)) & ~static_cast<unsigned>(lanes - 1);
  const unsigned mask = (0xffffffffu >> (kWarp - lanes)) << first_lane;
  const int64_t teams = kThreads / lanes;
  const int64_t stride = p.heads * p.channels;
  const int64_t first = static_cast<int64_t>(lane) * V;

  for (int64_t index = blockIdx.x * teams + threadIdx.x / lanes; index < p.items();
       index += gridDim.x * teams) {
    const Item item = item_at(p, index);
    const T* __restrict__ plane = static_cast<const T*>(p.value) + item.plane;
    const T* __restrict__ grad_out = static_cast<const T*>(g.out) + item.out;
    const A* __restrict__ loc = static_cast<const A*>(p.loc) + 2 * item.points;
    const A* __restrict__ weight = static_cast<const A*>(p.weight) + item.points;
    A* __restrict__ grad_value = static_cast<A*>(g.value) + item.plane;
    A* __restrict__ grad_loc = static_cast<A*>(g.loc) + 2 * item.points;
    A* __restrict__ grad_weight = static_cast<A*>(g.weight) + item.points;

    // One vector a lane covers the channels of nearly every model: it stays in
    // registers over all points. Wider heads reload the rest from the cache.
    A own[V] = {};
    if (first < p.channels) load<T, V, A>(grad_out + first, own);

    int64_t point = 0;
    for (int64_t l = 0; l < p.levels; ++l) {
      const Level level = level_at(p.shapes, p.starts, l);
      const bool sound = fits(level, p.rows);
      for (int64_t k = 0; k < p.points; ++k, ++point) {
        const A w = weight[point];
        const Sample<A> s = locate(loc[2 * point], loc[2 * point + 1], level);
        PointSums<A> sums = {0, 0, 0};
        if (sound && s.hit) {
          A coef[4];
          corner_weights(s, coef);
          for (int64_t c = first; c < p.channels; c += lanes * V) {
            A grad[V], v0[V], v1[V], v2[V], v3[V];
            if (c == first) {
#pragma unroll
              for (int i = 0; i < V; ++i) grad[i] = own[i];
            } else {
              load<T, V, A>(grad_out + c, grad);
            }
            load_corner<T, V>(plane + c, s.row[0], stride, v0);
            load_corner<T, V>(plane + c, s.row[1], stride, v1);
            load_corner<T, V>(plane + c, s.row[2], stride, v2);
            load_corner<T, V>(plane + c, s.row[3], stride, v3);
#pragma unroll
            for (int i = 0; i < V; ++i) add_channel(sums, s, coef, grad[i], v0[i], v1[i], v2[i], v3[i]);
#pragma unroll
            for (int corner = 0; corner < 4; ++corner) {
              if (s.row[corner] < 0) continue;
              const A scale = w * coef[corner];
              A part[V];
#pragma unroll
              for (int i = 0; i < V; ++i) part[i] = scale * grad[i];
              add_to<V, A>(grad_value + s.row[corner] * stride + c, part);
            }
          }
          sums.weight = team_sum(sums.weight, lanes, mask);
          sums.x = team_sum(sums.x, lanes, mask);
          sums.y = team_sum(sums.y, lanes, mask);
        }
        if (lane == 0) {
          const A bad = static_cast<A>(NAN);
          grad_weight[point] = sound ? sums.weight : bad;
          grad_loc[2 * point] = sound ? grad_loc_x(sums, level, w) : bad;
          grad_loc[2 * point + 1] = sound ? grad_loc_y(sums, level, w) : bad;
        }
      }
    }
  }
}

template <typename T>
cudaError_t backward_as(const Problem& p, const Gradients& g, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  if (vectorises<T>(p.value, p.channels) && vectorises<T>(g.out, p.channels) &&
      vectorises<T>(g.value, p.channels)) {
    const Team team = team_for(p, V);
    return launch(backward_kernel<T, V>, team, stream, p, g, team.lanes);
  }
  const Team team = team_for(p, 1);
  return launch(backward_kernel<T, 1>, team, stream, p, g, team.lanes);
}

}  // namespace

cudaError_t backward(const Problem& p, const Gradients& g, cudaStream_t stream) {
  // With no channels the sums are empty, but they are still to be written.
  if (p.items() == 0 || p.levels * p.points == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::f32: return backward_as<float>(p, g, stream);
    case DType::f64: return backward_as<double>(p, g, stream);
    case DType::f16: return backward_as<__half>(p, g, stream);
    case DType::bf16: return backward_as<__nv_bfloat16>(p, g, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace cuda
}  // namespace msda
