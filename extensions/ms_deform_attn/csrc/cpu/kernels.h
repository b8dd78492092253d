// CPU kernels. They work on a range, so that the caller chooses the threads.
#pragma once

#include "../problem.h"

namespace msda {
namespace cpu {

// Items [begin, end) of problem.items(), in (batch, query, head) order.
void forward(const Problem& problem, void* out, int64_t begin, int64_t end);

// Planes [begin, end) of batch * heads. One plane owns its slice of grad_value,
// so no two ranges write the same element and the result does not depend on
// the number of threads.
void backward(const Problem& problem, const Gradients& grads, int64_t begin, int64_t end);

}  // namespace cpu
}  // namespace msda
