// The little of torch that the bindings use, in two spellings.
//
// MSDA_STABLE: the LibTorch stable ABI. The library then calls C shims only and
// one binary serves every torch from 2.10 on. Otherwise: the C++ API, whose
// binaries are tied to one torch minor version, for torch 2.0 to 2.9.
//
// The operators themselves (ops.h, cpu_ops.cpp, cuda_ops.cpp) are written once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#ifdef MSDA_STABLE

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#define MSDA_CHECK STD_TORCH_CHECK
#define MSDA_DEFINE(ns, m) STABLE_TORCH_LIBRARY(ns, m)
#define MSDA_IMPL(ns, key, m) STABLE_TORCH_LIBRARY_IMPL(ns, key, m)
#define MSDA_FN(f) TORCH_BOX(&f)

namespace msda {
namespace api {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline Tensor contiguous(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}
inline Tensor cast(const Tensor& t, ScalarType dtype) {
  return t.scalar_type() == dtype ? t : torch::stable::to(t, dtype);
}
inline std::vector<int64_t> sizes(const Tensor& t) {
  const auto s = t.sizes();
  return std::vector<int64_t>(s.begin(), s.end());
}
inline Tensor empty(const Tensor& like, const std::vector<int64_t>& size, ScalarType dtype) {
  return torch::stable::new_empty(like, size, dtype);
}
inline Tensor zeros(const Tensor& like, const std::vector<int64_t>& size, ScalarType dtype) {
  return torch::stable::new_zeros(like, size, dtype);
}
inline const void* read(const Tensor& t) { return t.const_data_ptr(); }
inline void* write(const Tensor& t) { return t.mutable_data_ptr(); }
inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.device() == b.device();
}
template <class F>
void parallel_for(int64_t end, int64_t grain, const F& f) {
  torch::stable::parallel_for(0, end, grain, f);
}

}  // namespace api
}  // namespace msda

#else  // the C++ API

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#define MSDA_CHECK TORCH_CHECK
#define MSDA_DEFINE(ns, m) TORCH_LIBRARY(ns, m)
#define MSDA_IMPL(ns, key, m) TORCH_LIBRARY_IMPL(ns, key, m)
#define MSDA_FN(f) TORCH_FN(f)

namespace msda {
namespace api {

using at::ScalarType;
using at::Tensor;

inline Tensor contiguous(const Tensor& t) { return t.contiguous(); }
inline Tensor cast(const Tensor& t, ScalarType dtype) { return t.to(dtype); }
inline std::vector<int64_t> sizes(const Tensor& t) { return t.sizes().vec(); }
inline Tensor empty(const Tensor& like, const std::vector<int64_t>& size, ScalarType dtype) {
  return like.new_empty(size, like.options().dtype(dtype));
}
inline Tensor zeros(const Tensor& like, const std::vector<int64_t>& size, ScalarType dtype) {
  return like.new_zeros(size, like.options().dtype(dtype));
}
inline const void* read(const Tensor& t) { return t.data_ptr(); }
inline void* write(const Tensor& t) { return t.data_ptr(); }
inline bool same_device(const Tensor& a, const Tensor& b) { return a.device() == b.device(); }
template <class F>
void parallel_for(int64_t end, int64_t grain, const F& f) {
  at::parallel_for(0, end, grain, f);
}

}  // namespace api
}  // namespace msda

#endif
