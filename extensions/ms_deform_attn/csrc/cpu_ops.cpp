// _C: the operators' schemas and their CPU kernels.
#include <algorithm>

#include "cpu/kernels.h"
#include "ops.h"
#include "sample.h"

namespace msda {
namespace {

// On the CPU the numbers can be looked at, so a wrong one gets a name. The CUDA
// kernels cannot do so without a sync; they answer NaN (cuda/kernels.cuh).
void check_levels(const Problem& p) {
  for (int64_t l = 0; l < p.levels; ++l) {
    const Level level = level_at(p.shapes, p.starts, l);
    MSDA_CHECK(fits(level, p.rows), "ms_deform_attn: spatial_shapes[", l, "] = (", level.height,
               ", ", level.width, ") with level_start_index[", l, "] = ", level.start,
               " does not fit in the ", p.rows, " rows of value");
  }
}

// Work a thread should get at least, in channel updates: below it the threads
// cost more than they bring.
constexpr int64_t kGrain = 1 << 15;

int64_t grain(int64_t work_per_item) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_per_item)); }

Tensor forward(const Tensor& value, const Tensor& spatial_shapes, const Tensor& level_start_index,
               const Tensor& sampling_loc, const Tensor& attn_weight) {
  return forward_op(value, spatial_shapes, level_start_index, sampling_loc, attn_weight,
                    [](const Problem& p, void* out) {
                      check_levels(p);
                      api::parallel_for(p.items(), grain(p.levels * p.points * p.channels),
                                        [&](int64_t begin, int64_t end) {
                                          cpu::forward(p, out, begin, end);
                                        });
                    });
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& value, const Tensor& spatial_shapes,
                                            const Tensor& level_start_index,
                                            const Tensor& sampling_loc, const Tensor& attn_weight,
                                            const Tensor& grad_output) {
  return backward_op(
      value, spatial_shapes, level_start_index, sampling_loc, attn_weight, grad_output,
      [](const Problem& p, const Gradients& grads) {
        check_levels(p);
        api::parallel_for(p.batch * p.heads, grain(p.queries * p.levels * p.points * p.channels),
                          [&](int64_t begin, int64_t end) { cpu::backward(p, grads, begin, end); });
      });
}

}  // namespace
}  // namespace msda

MSDA_DEFINE(ms_deform_attn, m) {
  m.def(
      "forward(Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_loc, "
      "Tensor attn_weight) -> Tensor");
  m.def(
      "backward(Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_loc, "
      "Tensor attn_weight, Tensor grad_output) -> (Tensor, Tensor, Tensor)");
}

MSDA_IMPL(ms_deform_attn, CPU, m) {
  m.impl("forward", MSDA_FN(msda::forward));
  m.impl("backward", MSDA_FN(msda::backward));
}
