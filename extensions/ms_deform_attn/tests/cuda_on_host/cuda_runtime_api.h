// A stand-in for CUDA's header: just enough to compile the kernels with a C++
// compiler and run every lane of every warp on the CPU, one after the other.
//
// Lanes are fibres. A lane runs until it shuffles or ends; when none can run, the
// lanes of a mask that have all arrived exchange their values. A mask that names
// a lane which never comes is reported: on a GPU it would hang or give garbage.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)

typedef void* cudaStream_t;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

struct dim3 {
  unsigned x;
  explicit dim3(unsigned x_ = 1) : x(x_) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline dim3 gridDim, blockIdx, threadIdx;

inline void atomicAdd(float* to, float value) { *to += value; }
#if __CUDA_ARCH__ >= 600
inline void atomicAdd(double* to, double value) { *to += value; }
#endif
inline unsigned long long atomicCAS(unsigned long long* to, unsigned long long held, unsigned long long value) {
  const unsigned long long found = *to;
  if (found == held) *to = value;
  return found;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline void atomicAdd(float4* to, float4 value) {
  to->x += value.x;
  to->y += value.y;
  to->z += value.z;
  to->w += value.w;
}

namespace on_host {

constexpr int kWarp = 32;

struct Lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 * 1024);
  enum { ready, waiting, done } state = done;
  unsigned mask = 0;
  int step = 0;
  double value = 0;  // holds a float exactly
};

inline Lane lanes[kWarp];
inline ucontext_t scheduler;
inline int current = 0;
inline void (*body)(void*) = nullptr;
inline void* body_argument = nullptr;

inline void lane_main() {
  body(body_argument);
  lanes[current].state = Lane::done;
}

[[noreturn]] inline void fail(const char* what) { throw std::runtime_error(what); }

inline void exchange() {
  bool any = false;
  for (int first = 0; first < kWarp; ++first) {
    if (lanes[first].state != Lane::waiting) continue;
    const unsigned mask = lanes[first].mask;
    if (!(mask >> first & 1)) fail("a lane shuffles with a mask that does not name it");
    bool all = true;
    for (int i = 0; i < kWarp; ++i) {
      if (!(mask >> i & 1)) continue;
      all = all && lanes[i].state == Lane::waiting && lanes[i].mask == mask && lanes[i].step == lanes[first].step;
    }
    if (!all) continue;
    double got[kWarp];
    for (int i = 0; i < kWarp; ++i) {
      if (!(mask >> i & 1)) continue;
      if (!(mask >> (i ^ lanes[i].step) & 1)) fail("a lane reads from a lane outside its mask");
      got[i] = lanes[i ^ lanes[i].step].value;
    }
    for (int i = 0; i < kWarp; ++i) {
      if (!(mask >> i & 1)) continue;
      lanes[i].value = got[i];
      lanes[i].state = Lane::ready;
    }
    any = true;
  }
  if (!any) fail("a mask names a lane that never arrives");
}

inline void run_warp(unsigned first_thread) {
  for (Lane& lane : lanes) {
    lane.state = Lane::ready;
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.data();
    lane.context.uc_stack.ss_size = lane.stack.size();
    lane.context.uc_link = &scheduler;
    makecontext(&lane.context, lane_main, 0);
  }
  for (;;) {
    bool ran = false, left = false;
    for (int i = 0; i < kWarp; ++i) {
      if (lanes[i].state == Lane::ready) {
        current = i;
        threadIdx.x = first_thread + static_cast<unsigned>(i);
        swapcontext(&scheduler, &lanes[i].context);
        ran = true;
      }
      left = left || lanes[i].state != Lane::done;
    }
    if (!left) return;
    if (!ran) exchange();
  }
}

template <typename... Params>
std::index_sequence_for<Params...> places(void (*)(Params...)) {
  return {};
}

template <typename... Params, size_t... I>
void call(void (*kernel)(Params...), void** parameters, std::index_sequence<I...>) {
  kernel(*static_cast<Params*>(parameters[I])...);
}

}  // namespace on_host

template <typename A>
A __shfl_xor_sync(unsigned mask, A value, int step) {
  on_host::Lane& lane = on_host::lanes[on_host::current];
  lane.mask = mask;
  lane.step = step;
  lane.value = value;
  lane.state = on_host::Lane::waiting;
  swapcontext(&lane.context, &on_host::scheduler);
  return static_cast<A>(lane.value);
}

// A pointer to const, as in CUDA 11 and 12: a caller that leaves the type to be deduced compiles with 13 alone.
template <typename Kernel>
cudaError_t cudaLaunchKernel(const Kernel* kernel, dim3 grid, dim3 block, void** parameters, size_t, cudaStream_t) {
  using namespace on_host;
  auto run = [&] { call(kernel, parameters, places(kernel)); };
  body = [](void* lambda) { (*static_cast<decltype(run)*>(lambda))(); };
  body_argument = &run;
  gridDim = grid;
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx.x = b;
    for (unsigned t = 0; t < block.x; t += kWarp) run_warp(t);
  }
  return cudaSuccess;
}
