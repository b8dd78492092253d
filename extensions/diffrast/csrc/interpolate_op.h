// The operators interpolate and interpolate_backward between torch and the phases: check, make contiguous, call.
#pragma once

#include <limits>

#include "interpolate.h"
#include "torch_api.h"

namespace diffrast {

// The tensors of one call in the form the phases need, kept alive with the sizes that describe them.
struct InterpolateInputs {
  Tensor attr, rast, tri;
  std::optional<Tensor> rast_db;
  Sizes selected;
  Sizes raster;  // (N, h, w)

  int64_t attributes() const { return attr.size(-1); }

  template <class T>
  InterpolateProblem<T> problem() const {
    InterpolateProblem<T> p;
    p.batch = raster[0];
    p.height = raster[1];
    p.width = raster[2];
    p.vertices = attr.size(-2);
    p.attributes = attributes();
    p.triangles = tri.size(0);
    p.attr_stride = attr.dim() == 3 && attr.size(0) > 1 ? p.vertices * p.attributes : 0;
    p.attr = read<T>(attr);
    p.rast = read<T>(rast);
    p.tri = read<int32_t>(tri);
    p.rast_db = rast_db ? read<T>(*rast_db) : nullptr;
    p.selected = selected.data();
    p.selected_count = static_cast<int64_t>(selected.size());
    return p;
  }
};

inline InterpolateInputs prepare_interpolate(const Tensor& attr, const Tensor& rast, const Tensor& tri,
                                             const std::optional<Tensor>& rast_db, const Sizes& diff_attrs) {
  const char* op = "interpolate";
  check_floating(op, "attr", attr);
  check_same_dtype(op, "rast", rast, "attr", attr);
  check_int32(op, "tri", tri);
  check_device(op, "rast", rast, attr);
  check_device(op, "tri", tri, attr);
  check_shape(op, "rast", rast, {-1, -1, -1, 4}, "(N, h, w, 4)");
  check_shape(op, "tri", tri, {-1, 3}, "(T, 3)");
  const Sizes a = sizes(attr), r = sizes(rast);
  DIFFRAST_CHECK(a.size() == 2 || (a.size() == 3 && (a[0] == 1 || a[0] == r[0])),
                 "diffrast.interpolate: attr must have shape (V, A), (1, V, A) or (N, V, A) with N = ", r[0], ", got ",
                 show(a));
  if (rast_db) {
    check_same_dtype(op, "rast_db", *rast_db, "attr", attr);
    check_device(op, "rast_db", *rast_db, attr);
    check_shape(op, "rast_db", *rast_db, r, "(N, h, w, 4), that of rast");
  }
  DIFFRAST_CHECK(diff_attrs.empty() || rast_db, "diffrast.interpolate: diff_attrs needs rast_db");
  const int64_t attributes = a.back();
  DIFFRAST_CHECK(attributes <= std::numeric_limits<int32_t>::max(),
                 "diffrast.interpolate: attr has too many attributes");
  for (const int64_t index : diff_attrs) {
    DIFFRAST_CHECK(index >= 0 && index < attributes, "diffrast.interpolate: diff_attrs names attribute ", index,
                   ", attr has ", attributes);
  }
  std::optional<Tensor> db;
  if (rast_db) db = contiguous(*rast_db);
  return {contiguous(attr), contiguous(rast), contiguous(tri), db, diff_attrs, {r[0], r[1], r[2]}};
}

// run(inputs, out, out_da)
template <class Run>
std::tuple<Tensor, Tensor> interpolate_op(const Tensor& attr, const Tensor& rast, const Tensor& tri,
                                          const std::optional<Tensor>& rast_db, const Sizes& diff_attrs,
                                          const Run& run) {
  const InterpolateInputs in = prepare_interpolate(attr, rast, tri, rast_db, diff_attrs);
  const Sizes& r = in.raster;
  const Tensor out = empty(in.attr, {r[0], r[1], r[2], in.attributes()});
  const Tensor out_da = empty(in.attr, {r[0], r[1], r[2], 2 * static_cast<int64_t>(diff_attrs.size())});
  run(in, out, out_da);
  return std::make_tuple(out, out_da);
}

// run(inputs, grad_out, grad_out_da, grad_attr, grad_rast, grad_rast_db); the last is (N, h, w, 0) without rast_db.
// Without `to_attr` grad_attr is (0,): texture coordinates mostly stay as they are, and its sums cost the most.
template <class Run>
std::tuple<Tensor, Tensor, Tensor> interpolate_backward_op(const Tensor& attr, const Tensor& rast, const Tensor& tri,
                                                           const std::optional<Tensor>& rast_db,
                                                           const Sizes& diff_attrs, const Tensor& grad_out,
                                                           const Tensor& grad_out_da, bool to_attr, const Run& run) {
  const char* op = "interpolate";
  const InterpolateInputs in = prepare_interpolate(attr, rast, tri, rast_db, diff_attrs);
  const Sizes& r = in.raster;
  const int64_t derivatives = 2 * static_cast<int64_t>(diff_attrs.size());
  check_same_dtype(op, "grad_out", grad_out, "attr", attr);
  check_same_dtype(op, "grad_out_da", grad_out_da, "attr", attr);
  check_device(op, "grad_out", grad_out, attr);
  check_device(op, "grad_out_da", grad_out_da, attr);
  check_shape(op, "grad_out", grad_out, {r[0], r[1], r[2], in.attributes()}, "(N, h, w, A)");
  check_shape(op, "grad_out_da", grad_out_da, {r[0], r[1], r[2], derivatives}, "(N, h, w, 2 * len(diff_attrs))");

  const Tensor grad_attr = zeros(in.attr, to_attr ? sizes(in.attr) : Sizes{0});
  const Tensor grad_rast = empty(in.attr, sizes(in.rast));
  const Sizes db{r[0], r[1], r[2], in.rast_db ? 4 : 0};
  const Tensor grad_rast_db = derivatives ? empty(in.attr, db) : zeros(in.attr, db);
  run(in, contiguous(grad_out), contiguous(grad_out_da), grad_attr, grad_rast, grad_rast_db);
  return std::make_tuple(grad_attr, grad_rast, grad_rast_db);
}

template <class T>
InterpolateGradients<T> interpolate_gradients(const Tensor& out, const Tensor& out_da, const Tensor& attr,
                                              const Tensor& rast, const Tensor& rast_db) {
  return {read<T>(out), read<T>(out_da), write<T>(attr), write<T>(rast), write<T>(rast_db)};
}

}  // namespace diffrast
