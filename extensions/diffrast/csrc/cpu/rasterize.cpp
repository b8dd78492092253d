// rasterize on the CPU, and the schemas of its operators.
#include "../rasterize_op.h"

namespace diffrast {
namespace {

std::tuple<Tensor, Tensor> rasterize_cpu(const Tensor& pos, const Tensor& tri, int64_t height, int64_t width,
                                         const std::optional<Tensor>& ranges, const std::optional<Tensor>& peel,
                                         bool db) {
  std::optional<std::tuple<Tensor, Tensor>> out;
  with_floating(pos, [&](auto type) {
    out = rasterize_as<decltype(type)>(pos, tri, height, width, ranges, peel, db, [](const auto& problem) {
      Host backend = host();
      rasterize(backend, problem);
    });
  });
  return *out;
}

Tensor rasterize_backward_cpu(const Tensor& pos, const Tensor& tri, const Tensor& rast, const Tensor& grad_rast,
                              const std::optional<Tensor>& grad_rast_db) {
  Tensor grad_pos;
  with_floating(pos, [&](auto type) {
    grad_pos = rasterize_backward_as<decltype(type)>(pos, tri, rast, grad_rast, grad_rast_db, [](const auto& problem) {
      Host backend = host();
      rasterize_backward(backend, problem);
    });
  });
  return grad_pos;
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_FRAGMENT(diffrast, m) {
  m.def(
      "rasterize(Tensor pos, Tensor tri, SymInt height, SymInt width, Tensor? ranges, Tensor? peel, bool db) "
      "-> (Tensor rast, Tensor rast_db)");
  m.def("rasterize_backward(Tensor pos, Tensor tri, Tensor rast, Tensor grad_rast, Tensor? grad_rast_db) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(diffrast, CPU, m) {
  m.impl("rasterize", TORCH_BOX(&diffrast::rasterize_cpu));
  m.impl("rasterize_backward", TORCH_BOX(&diffrast::rasterize_backward_cpu));
}
