// The little of torch that the operators use: the LibTorch stable ABI, target 2.10. C shims only, so one binary
// serves every torch from 2.10 on.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backend.h"

#define DIFFRAST_CHECK STD_TORCH_CHECK

namespace diffrast {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Sizes = std::vector<int64_t>;

// An object and not a function: argument-dependent lookup would bring torch's function of this name into the choice.
inline constexpr auto contiguous = [](const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); };
inline Tensor empty(const Tensor& like, const Sizes& size, ScalarType dtype) {
  return torch::stable::new_empty(like, size, dtype);
}
inline Tensor empty(const Tensor& like, const Sizes& size) { return empty(like, size, like.scalar_type()); }
inline Tensor zeros(const Tensor& like, const Sizes& size, ScalarType dtype) {
  return torch::stable::new_zeros(like, size, dtype);
}
inline Tensor zeros(const Tensor& like, const Sizes& size) { return zeros(like, size, like.scalar_type()); }
template <class T>
const T* read(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <class T>
T* write(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

inline Sizes sizes(const Tensor& t) {
  const auto view = t.sizes();
  return Sizes(view.begin(), view.end());
}
inline std::string show(const Sizes& size) {
  std::string text = "(";
  for (size_t i = 0; i < size.size(); ++i) text += (i ? ", " : "") + std::to_string(size[i]);
  return text + (size.size() == 1 ? ",)" : ")");
}

// What every operator asks of its tensors; `op` and `name` stand in the message.
inline void check_device(const char* op, const char* name, const Tensor& t, const Tensor& like) {
  DIFFRAST_CHECK(t.device() == like.device(), "diffrast.", op, ": ", name, " must be on the same device as the others");
}
inline void check_dtype(const char* op, const char* name, const Tensor& t, ScalarType dtype) {
  DIFFRAST_CHECK(t.scalar_type() == dtype, "diffrast.", op, ": ", name, " has the wrong dtype");
}
// float32; on the CPU float64 as well, for gradcheck.
inline void check_floating(const char* op, const char* name, const Tensor& t) {
  const ScalarType dtype = t.scalar_type();
  DIFFRAST_CHECK(dtype == ScalarType::Float || (dtype == ScalarType::Double && t.is_cpu()), "diffrast.", op, ": ", name,
                 " must be float32 (or float64 on the CPU)");
}
inline void check_same_dtype(const char* op, const char* name, const Tensor& t, const char* like_name,
                             const Tensor& like) {
  DIFFRAST_CHECK(t.scalar_type() == like.scalar_type(), "diffrast.", op, ": ", name, " must have the dtype of ",
                 like_name);
}
inline void check_int32(const char* op, const char* name, const Tensor& t) {
  DIFFRAST_CHECK(t.scalar_type() == ScalarType::Int, "diffrast.", op, ": ", name, " must be int32");
}
// `want` has -1 where any size will do; `meaning` is how the documentation writes it, e.g. "(T, 3)".
inline void check_shape(const char* op, const char* name, const Tensor& t, const Sizes& want, const char* meaning) {
  const Sizes have = sizes(t);
  bool fits = have.size() == want.size();
  for (size_t i = 0; fits && i < want.size(); ++i) fits = want[i] < 0 || want[i] == have[i];
  DIFFRAST_CHECK(fits, "diffrast.", op, ": ", name, " must have shape ", meaning, ", got ", show(have));
}

// Calls body(T()) with the C++ type of a tensor that check_floating has let through.
template <class Body>
void with_floating(const Tensor& t, const Body& body) {
  if (t.scalar_type() == ScalarType::Double) {
    body(double());
  } else {
    body(float());
  }
}

// The CPU backend on torch's threads.
inline Host host() {
  return Host{[](int64_t end, int64_t grain, void* context, void (*body)(void*, int64_t, int64_t)) {
    if (end > 0) torch::stable::parallel_for(0, end, grain, [=](int64_t a, int64_t b) { body(context, a, b); });
  }};
}

}  // namespace diffrast
