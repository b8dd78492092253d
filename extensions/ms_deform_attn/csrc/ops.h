// The operators between torch and the kernels: check, make contiguous, call.
// Shared by cpu_ops.cpp and cuda_ops.cpp, which add the call itself.
#pragma once

#include <string>
#include <tuple>

#include "problem.h"
#include "torch_api.h"

namespace msda {

using api::ScalarType;
using api::Tensor;
using Sizes = std::vector<int64_t>;

inline DType dtype_of(const Tensor& value) {
  switch (value.scalar_type()) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Double: return DType::f64;
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    default: break;
  }
  MSDA_CHECK(false, "ms_deform_attn: value must be float32, float64, float16 or bfloat16");
  return DType::f32;
}

// Sums are made in f32 whatever the value's 16-bit type, and in f64 for f64.
inline ScalarType accumulation_type(const Tensor& value) {
  return value.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline std::string show(const Sizes& sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

inline void check_floating(const Tensor& t, const char* name) {
  const ScalarType dtype = t.scalar_type();
  MSDA_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Double ||
                 dtype == ScalarType::Half || dtype == ScalarType::BFloat16,
             "ms_deform_attn: ", name, " must be float32, float64, float16 or bfloat16");
}

inline void check_index(const Tensor& t, const char* name) {
  MSDA_CHECK(t.scalar_type() == ScalarType::Long, "ms_deform_attn: ", name, " must be int64");
}

inline void check_shape(const Tensor& t, const char* name, const Sizes& want, const char* meaning) {
  MSDA_CHECK(api::sizes(t) == want, "ms_deform_attn: ", name, " must have shape ", meaning, " = ",
             show(want), ", got ", show(api::sizes(t)));
}

inline void check_device(const Tensor& t, const char* name, const Tensor& value) {
  MSDA_CHECK(api::same_device(t, value), "ms_deform_attn: ", name,
             " must be on the same device as value");
}

// The tensors of one call in the form the kernels need, kept alive with the
// problem that points into them.
struct Inputs {
  Tensor value, shapes, starts, loc, weight;
  Problem problem;
};

inline Inputs prepare(const Tensor& value, const Tensor& shapes, const Tensor& starts,
                      const Tensor& loc, const Tensor& weight) {
  check_floating(value, "value");
  check_floating(loc, "sampling_loc");
  check_floating(weight, "attn_weight");
  check_index(shapes, "spatial_shapes");
  check_index(starts, "level_start_index");
  check_device(shapes, "spatial_shapes", value);
  check_device(starts, "level_start_index", value);
  check_device(loc, "sampling_loc", value);
  check_device(weight, "attn_weight", value);

  const Sizes v = api::sizes(value), at = api::sizes(loc), s = api::sizes(shapes);
  MSDA_CHECK(v.size() == 4, "ms_deform_attn: value must have shape (N, S, M, D), got ", show(v));
  MSDA_CHECK(s.size() == 2 && s[1] == 2,
             "ms_deform_attn: spatial_shapes must have shape (L, 2), got ", show(s));
  MSDA_CHECK(at.size() == 6, "ms_deform_attn: sampling_loc must have shape (N, Lq, M, L, P, 2), got ",
             show(at));
  const int64_t levels = s[0];
  check_shape(starts, "level_start_index", {levels}, "(L,)");
  check_shape(loc, "sampling_loc", {v[0], at[1], v[2], levels, at[4], 2}, "(N, Lq, M, L, P, 2)");
  check_shape(weight, "attn_weight", {v[0], at[1], v[2], levels, at[4]}, "(N, Lq, M, L, P)");

  // Locations and weights go in at the accumulation type: a location in f16
  // would be off by up to 0.04 pixel on a map 152 wide.
  const ScalarType acc = accumulation_type(value);
  Inputs in{api::contiguous(value), api::contiguous(shapes), api::contiguous(starts),
            api::contiguous(api::cast(loc, acc)), api::contiguous(api::cast(weight, acc)), Problem{}};
  Problem& p = in.problem;
  p.dtype = dtype_of(value);
  p.batch = v[0];
  p.rows = v[1];
  p.heads = v[2];
  p.channels = v[3];
  p.queries = at[1];
  p.levels = levels;
  p.points = at[4];
  p.value = api::read(in.value);
  p.shapes = static_cast<const int64_t*>(api::read(in.shapes));
  p.starts = static_cast<const int64_t*>(api::read(in.starts));
  p.loc = api::read(in.loc);
  p.weight = api::read(in.weight);
  return in;
}

// run(problem, out)
template <class Run>
Tensor forward_op(const Tensor& value, const Tensor& shapes, const Tensor& starts,
                  const Tensor& loc, const Tensor& weight, Run run) {
  const Inputs in = prepare(value, shapes, starts, loc, weight);
  const Problem& p = in.problem;
  Tensor out = api::empty(value, {p.batch, p.queries, p.heads * p.channels}, value.scalar_type());
  run(p, api::write(out));
  return out;
}

// run(problem, gradients)
template <class Run>
std::tuple<Tensor, Tensor, Tensor> backward_op(const Tensor& value, const Tensor& shapes,
                                               const Tensor& starts, const Tensor& loc,
                                               const Tensor& weight, const Tensor& grad_output,
                                               Run run) {
  const Inputs in = prepare(value, shapes, starts, loc, weight);
  const Problem& p = in.problem;
  check_device(grad_output, "grad_output", value);
  MSDA_CHECK(grad_output.scalar_type() == value.scalar_type(),
             "ms_deform_attn: grad_output must have the dtype of value");
  check_shape(grad_output, "grad_output", {p.batch, p.queries, p.heads * p.channels},
              "(N, Lq, M*D)");

  const ScalarType acc = accumulation_type(value);
  const Tensor out = api::contiguous(grad_output);
  const Tensor grad_value = api::zeros(value, api::sizes(value), acc);
  const Tensor grad_loc = api::empty(value, api::sizes(loc), acc);
  const Tensor grad_weight = api::empty(value, api::sizes(weight), acc);
  const Gradients grads{api::read(out), api::write(grad_value), api::write(grad_loc),
                        api::write(grad_weight)};
  run(p, grads);
  return std::make_tuple(api::cast(grad_value, value.scalar_type()),
                         api::cast(grad_loc, loc.scalar_type()),
                         api::cast(grad_weight, weight.scalar_type()));
}

}  // namespace msda
