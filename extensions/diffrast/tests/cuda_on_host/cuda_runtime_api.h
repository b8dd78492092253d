// A stand-in for CUDA's header: just enough to compile the kernels with a C++ compiler and run every lane of every warp
// on the CPU, one after the other.
//
// Lanes are fibres. A lane runs until it meets its warp or ends; when none can run, the lanes of a mask that have all
// arrived see each other's values. A mask that names a lane which never comes is reported: on a GPU it would hang or
// give garbage.
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
#define __noinline__
#define __launch_bounds__(...)

typedef void* cudaStream_t;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* at, int byte, size_t bytes, cudaStream_t) {
  std::memset(at, byte, bytes);
  return cudaSuccess;
}

struct dim3 {
  unsigned x;
  explicit dim3(unsigned x_ = 1) : x(x_) {}
};
inline dim3 gridDim, blockDim, blockIdx, threadIdx;

// Lanes take turns: nothing comes in between.
template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
inline void atomicMin(unsigned long long* at, unsigned long long value) { *at = value < *at ? value : *at; }
inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long wanted) {
  const unsigned long long before = *at;
  if (before == expected) *at = wanted;
  return before;
}
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

namespace on_host {

constexpr int kWarp = 32;

struct Lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 * 1024);
  enum { ready, waiting, done } state = done;
  unsigned mask = 0;
  const char* what = nullptr;
  uint64_t value = 0;
  uint64_t seen[kWarp];
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

// Lets those meet who wait for each other.
inline void meet() {
  bool any = false;
  for (int first = 0; first < kWarp; ++first) {
    if (lanes[first].state != Lane::waiting) continue;
    const unsigned mask = lanes[first].mask;
    if (!(mask >> first & 1)) fail("a lane waits with a mask that does not name it");
    bool all = true;
    for (int i = 0; i < kWarp; ++i) {
      if (!(mask >> i & 1)) continue;
      all = all && lanes[i].state == Lane::waiting && lanes[i].mask == mask && lanes[i].what == lanes[first].what;
    }
    if (!all) continue;
    for (int i = 0; i < kWarp; ++i) {
      if (!(mask >> i & 1)) continue;
      for (int k = 0; k < kWarp; ++k) lanes[i].seen[k] = lanes[k].value;
      lanes[i].state = Lane::ready;
    }
    any = true;
  }
  if (!any) fail("a mask names a lane that never arrives");
}

// Waits for the lanes of the mask; their values.
inline const uint64_t* await(unsigned mask, const char* what, uint64_t value) {
  Lane& lane = lanes[current];
  lane.mask = mask;
  lane.what = what;
  lane.value = value;
  lane.state = Lane::waiting;
  swapcontext(&lane.context, &scheduler);
  return lane.seen;
}

template <class T>
T shuffle(unsigned mask, const char* what, T value, int from) {
  if (!(mask >> from & 1)) fail("a lane reads from a lane outside its mask");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = await(mask, what, bits)[from];
  std::memcpy(&value, &bits, sizeof value);
  return value;
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
    if (!ran) meet();
  }
}

template <class... Params>
std::index_sequence_for<Params...> places(void (*)(Params...)) {
  return {};
}

template <class... Params, size_t... I>
void call(void (*kernel)(Params...), void** parameters, std::index_sequence<I...>) {
  kernel(*static_cast<Params*>(parameters[I])...);
}

}  // namespace on_host

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return on_host::shuffle(mask, "shfl", value, from);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step) {
  return on_host::shuffle(mask, "shfl_xor", value, on_host::current ^ step);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  const uint64_t* votes = on_host::await(mask, "ballot", vote);
  unsigned bits = 0;
  for (int i = 0; i < on_host::kWarp; ++i) bits |= (mask >> i & 1) && votes[i] ? 1u << i : 0u;
  return bits;
}
inline void __syncwarp() { on_host::await(0xffffffffu, "syncwarp", 0); }

// A pointer to const, as in CUDA 11 and 12: a caller that leaves the type to be deduced compiles with 13 alone.
template <class Kernel>
cudaError_t cudaLaunchKernel(const Kernel* kernel, dim3 grid, dim3 block, void** parameters, size_t, cudaStream_t) {
  using namespace on_host;
  auto run = [&] { call(kernel, parameters, places(kernel)); };
  body = [](void* lambda) { (*static_cast<decltype(run)*>(lambda))(); };
  body_argument = &run;
  gridDim = grid;
  blockDim = block;
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx.x = b;
    for (unsigned t = 0; t < block.x; t += kWarp) run_warp(t);
  }
  return cudaSuccess;
}
