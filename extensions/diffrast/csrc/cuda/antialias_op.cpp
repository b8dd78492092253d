// antialias on the GPU as torch calls it.
#include "../antialias_op.h"
#include "antialias_run.h"
#include "on_device.h"

namespace diffrast {
namespace {

Tensor antialias_cuda(const Tensor& color, const Tensor& rast, const Tensor& pos, const Tensor& tri,
                      const Tensor& topology, double /* pos_gradient_boost */) {
  return antialias_op(color, rast, pos, tri, topology, [](const AntialiasInputs& in, const Tensor& out) {
    const OnDevice on(in.color);
    check_launch(run_antialias(in.problem<float>(), write<float>(in.blends), write<float>(out), on.stream),
                 "antialias");
  });
}

std::tuple<Tensor, Tensor> antialias_backward_cuda(const Tensor& color, const Tensor& rast, const Tensor& pos,
                                                   const Tensor& tri, const Tensor& topology,
                                                   double pos_gradient_boost, const Tensor& grad_out) {
  return antialias_backward_op(
      color, rast, pos, tri, topology, grad_out,
      [&](const AntialiasInputs& in, const Tensor& grad, const Tensor& grad_color, const Tensor& grad_pos) {
        const OnDevice on(in.color);
        check_launch(run_antialias_backward(in.problem<float>(), static_cast<float>(pos_gradient_boost),
                                            read<float>(grad), write<float>(in.blends), write<float>(grad_color),
                                            write<float>(grad_pos), on.stream),
                     "antialias_backward");
      });
}

Tensor antialias_topology_cuda(const Tensor& tri) {
  const OnDevice on(tri);
  return antialias_topology_op(
      tri,
      [&](int64_t half_edges, const EdgeKeys& phase) {
        check_launch(run_edge_keys(half_edges, phase, on.stream), "antialias_topology");
      },
      [&](int64_t half_edges, const LinkEdges& phase) {
        check_launch(run_link_edges(half_edges, phase, on.stream), "antialias_topology");
      });
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_IMPL(diffrast, CUDA, m) {
  m.impl("antialias", TORCH_BOX(&diffrast::antialias_cuda));
  m.impl("antialias_backward", TORCH_BOX(&diffrast::antialias_backward_cuda));
  m.impl("antialias_topology", TORCH_BOX(&diffrast::antialias_topology_cuda));
}
