// antialias on the CPU, and the schemas of its operators.
#include "../antialias_op.h"

namespace diffrast {
namespace {

Tensor antialias_cpu(const Tensor& color, const Tensor& rast, const Tensor& pos, const Tensor& tri,
                     const Tensor& topology, double /* pos_gradient_boost */) {
  return antialias_op(color, rast, pos, tri, topology, [](const AntialiasInputs& in, const Tensor& out) {
    with_floating(in.color, [&](auto type) {
      using T = decltype(type);
      const Host backend = host();
      antialias(backend, in.problem<T>(), write<T>(in.blends), write<T>(out));
    });
  });
}

std::tuple<Tensor, Tensor> antialias_backward_cpu(const Tensor& color, const Tensor& rast, const Tensor& pos,
                                                  const Tensor& tri, const Tensor& topology, double pos_gradient_boost,
                                                  const Tensor& grad_out) {
  return antialias_backward_op(
      color, rast, pos, tri, topology, grad_out,
      [&](const AntialiasInputs& in, const Tensor& grad, const Tensor& grad_color, const Tensor& grad_pos) {
        with_floating(in.color, [&](auto type) {
          using T = decltype(type);
          const Host backend = host();
          antialias_backward(backend, in.problem<T>(), static_cast<T>(pos_gradient_boost), read<T>(grad),
                             write<T>(in.blends), write<T>(grad_color), write<T>(grad_pos));
        });
      });
}

Tensor antialias_topology_cpu(const Tensor& tri) {
  const auto run = [](int64_t half_edges, const auto& phase) { host().each(half_edges, phase); };
  return antialias_topology_op(tri, run, run);
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_FRAGMENT(diffrast, m) {
  m.def(
      "antialias(Tensor color, Tensor rast, Tensor pos, Tensor tri, Tensor topology, "
      "float pos_gradient_boost=1.0) -> Tensor");
  m.def(
      "antialias_backward(Tensor color, Tensor rast, Tensor pos, Tensor tri, Tensor topology, "
      "float pos_gradient_boost, Tensor grad_out) -> (Tensor, Tensor)");
  m.def("antialias_topology(Tensor tri) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(diffrast, CPU, m) {
  m.impl("antialias", TORCH_BOX(&diffrast::antialias_cpu));
  m.impl("antialias_backward", TORCH_BOX(&diffrast::antialias_backward_cpu));
  m.impl("antialias_topology", TORCH_BOX(&diffrast::antialias_topology_cpu));
}
