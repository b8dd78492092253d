// Where the phases of an operator run. A phase is a functor over item numbers; its body is written once and
// compiled for both: Host loops over the items, Device launches them as a grid. Torch-free.
//
//   struct Shade { Problem p; DIFFRAST_HD void operator()(int64_t i) const { ... } };
//   backend.each(n, Shade{p});
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define DIFFRAST_HD __host__ __device__ __forceinline__
#define DIFFRAST_HD_SELDOM __host__ __device__ __noinline__  // its registers are not taken from those who seldom call
#else
#define DIFFRAST_HD inline
#define DIFFRAST_HD_SELDOM inline
#endif

namespace diffrast {

// Adds to memory that other items may add to at the same time.
template <class T>
DIFFRAST_HD void atomic_add(T* at, T value) {
#ifdef __CUDA_ARCH__
  atomicAdd(at, value);
#else
  // Host::each_in_order runs the phases that add, one item after the other: sums are the same in every run.
  *at += value;
#endif
}

// Lowers a 64-bit key that other items may lower at the same time; the result does not depend on their order.
DIFFRAST_HD void atomic_min(uint64_t* at, uint64_t value) {
#ifdef __CUDA_ARCH__
  // Keys only fall, so an old one that is low enough is proof enough and spares the atomic.
  if (*static_cast<volatile uint64_t*>(at) <= value) return;
  atomicMin(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  uint64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(at, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

// Puts `wanted` where `expected` stands; what stood there.
DIFFRAST_HD uint64_t atomic_swap_if(uint64_t* at, uint64_t expected, uint64_t wanted) {
#ifdef __CUDA_ARCH__
  return atomicCAS(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(wanted));
#else
  __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
#endif
}

// The CPU. `Parallel` runs body(begin, end) over [0, end) on torch's threads; the bindings give it.
struct Host {
  void (*parallel)(int64_t end, int64_t grain, void* context, void (*body)(void*, int64_t, int64_t));

  // Items in any order, on several threads: for phases that write each place once or lower it by atomic_min.
  template <class Phase>
  void each(int64_t items, const Phase& phase) const {
    parallel(items, 256, const_cast<Phase*>(&phase), [](void* context, int64_t begin, int64_t end) {
      const Phase& body = *static_cast<const Phase*>(context);
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }
  // Items one after the other: for phases that add to shared places.
  template <class Phase>
  void each_in_order(int64_t items, const Phase& phase) const {
    for (int64_t i = 0; i < items; ++i) phase(i);
  }
  // Each number becomes the sum of those before it.
  void running_sum(int64_t* at, int64_t count) const {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t own = at[i];
      at[i] = sum;
      sum += own;
    }
  }
  // As many items as a sum made by the phases before it says: phase.p.pairs().
  template <class Phase>
  void each_pair(const Phase& phase) const {
    each(phase.p.pairs(), phase);
  }
  void clear(void* at, int byte, size_t bytes) const { std::memset(at, byte, bytes); }
};

}  // namespace diffrast
