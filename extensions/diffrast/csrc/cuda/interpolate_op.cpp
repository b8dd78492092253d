// interpolate on the GPU as torch calls it.
#include "../interpolate_op.h"
#include "interpolate_run.h"
#include "on_device.h"

namespace diffrast {
namespace {

std::tuple<Tensor, Tensor> interpolate_cuda(const Tensor& attr, const Tensor& rast, const Tensor& tri,
                                            const std::optional<Tensor>& rast_db, const Sizes& diff_attrs) {
  return interpolate_op(attr, rast, tri, rast_db, diff_attrs,
                        [](const InterpolateInputs& in, const Tensor& out, const Tensor& out_da) {
                          const OnDevice on(in.attr);
                          check_launch(run_interpolate(in.problem<float>(), write<float>(out), write<float>(out_da),
                                                       on.stream),
                                       "interpolate");
                        });
}

std::tuple<Tensor, Tensor, Tensor> interpolate_backward_cuda(const Tensor& attr, const Tensor& rast, const Tensor& tri,
                                                             const std::optional<Tensor>& rast_db,
                                                             const Sizes& diff_attrs, const Tensor& grad_out,
                                                             const Tensor& grad_out_da, bool to_attr) {
  return interpolate_backward_op(
      attr, rast, tri, rast_db, diff_attrs, grad_out, grad_out_da, to_attr,
      [](const InterpolateInputs& in, const auto&... gradients) {
        const OnDevice on(in.attr);
        check_launch(
            run_interpolate_backward(in.problem<float>(), interpolate_gradients<float>(gradients...), on.stream),
            "interpolate_backward");
      });
}

}  // namespace
}  // namespace diffrast

STABLE_TORCH_LIBRARY_IMPL(diffrast, CUDA, m) {
  m.impl("interpolate", TORCH_BOX(&diffrast::interpolate_cuda));
  m.impl("interpolate_backward", TORCH_BOX(&diffrast::interpolate_backward_cuda));
}
