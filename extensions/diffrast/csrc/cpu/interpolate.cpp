// interpolate on the CPU, and the schemas of its operators.
#include "../interpolate_op.h"

namespace diffrast {
namespace {

std::tuple<Tensor, Tensor> interpolate_cpu(const Tensor& attr, const Tensor& rast, const Tensor& tri,
                                           const std::optional<Tensor>& rast_db, const Sizes& diff_attrs) {
  return interpolate_op(attr, rast, tri, rast_db, diff_attrs,
                        [](const InterpolateInputs& in, const Tensor& out, const Tensor& out_da) {
                          with_floating(in.attr, [&](auto type) {
                            using T = decltype(type);
                            const Host backend = host();
                            interpolate(backend, in.problem<T>(), write<T>(out), write<T>(out_da));
                          });
                        });
}

std::tuple<Tensor, Tensor, Tensor> interpolate_backward_cpu(const Tensor& attr, const Tensor& rast, const Tensor& tri,
                                                            const std::optional<Tensor>& rast_db,
                                                            const Sizes& diff_attrs, const Tensor& grad_out,
                                                            const Tensor& grad_out_da, bool to_attr) {
  return interpolate_backward_op(attr, rast, tri, rast_db, diff_attrs, grad_out, grad_out_da, to_attr,
                                 [](const InterpolateInputs& in, const auto&... gradients) {
                                   with_floating(in.attr, [&](auto type) {
                                     using T = decltype(type);
                                     const Host backend = host();
                                     interpolate_backward(backend, in.problem<T>(),
                                                          interpolate_gradients<T>(gradients...));
                                   });
                                 });
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_FRAGMENT(diffrast, m) {
  m.def(
      "interpolate(Tensor attr, Tensor rast, Tensor tri, Tensor? rast_db, int[] diff_attrs) -> (Tensor, Tensor)");
  m.def(
      "interpolate_backward(Tensor attr, Tensor rast, Tensor tri, Tensor? rast_db, int[] diff_attrs, "
      "Tensor grad_out, Tensor grad_out_da, bool to_attr=True) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(diffrast, CPU, m) {
  m.impl("interpolate", TORCH_BOX(&diffrast::interpolate_cpu));
  m.impl("interpolate_backward", TORCH_BOX(&diffrast::interpolate_backward_cpu));
}
