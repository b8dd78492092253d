// rasterize on the GPU as torch calls it.
#include "../rasterize_op.h"
#include "on_device.h"
#include "rasterize_run.h"

namespace diffrast {
namespace {

std::tuple<Tensor, Tensor> rasterize_cuda(const Tensor& pos, const Tensor& tri, int64_t height, int64_t width,
                                          const std::optional<Tensor>& ranges, const std::optional<Tensor>& peel,
                                          bool db) {
  // A range on the device is enough for torch to come here, so pos may still be elsewhere.
  DIFFRAST_CHECK(pos.is_cuda(), "diffrast.rasterize: pos must be on the same device as the others");
  const OnDevice on(pos);
  return rasterize_as<float>(pos, tri, height, width, ranges, peel, db, [&](const RasterizeProblem<float>& problem) {
    size_t bytes = 0;
    check_launch(rasterize_scratch(problem, &bytes), "rasterize");
    const Tensor scratch = empty(pos, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
    check_launch(run_rasterize(problem, write<uint8_t>(scratch), bytes, on.stream), "rasterize");
  });
}

Tensor rasterize_backward_cuda(const Tensor& pos, const Tensor& tri, const Tensor& rast, const Tensor& grad_rast,
                               const std::optional<Tensor>& grad_rast_db) {
  DIFFRAST_CHECK(pos.is_cuda(), "diffrast.rasterize_backward: pos must be on the same device as the others");
  const OnDevice on(pos);
  return rasterize_backward_as<float>(pos, tri, rast, grad_rast, grad_rast_db,
                                      [&](const RasterizeGradients<float>& problem) {
                                        check_launch(run_rasterize_backward(problem, on.stream), "rasterize_backward");
                                      });
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_IMPL(diffrast, CUDA, m) {
  m.impl("rasterize", TORCH_BOX(&diffrast::rasterize_cuda));
  m.impl("rasterize_backward", TORCH_BOX(&diffrast::rasterize_backward_cuda));
}
