"""The check "layouts": each tensor argument non-contiguous in two ways, and output gradients as from autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.checks.gradients import backward, differentiable, leaves, requires_gradient
from builder.gate.checks.outputs import outputs_of
from builder.gate.checks.values import compare, compare_outputs
from builder.gate.context import Context, detached, iter_tensors, replace_tensor, sentence
from builder.gate.outcome import Outcome


def strided(tensor: Tensor) -> Tensor:
    """Return the same numbers as every second element of a wider buffer, at an offset of one element."""
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 77, dtype=torch.float32, device=tensor.device)
    wide = wide.to(tensor.dtype)
    view = wide[..., 1::2]
    view.copy_(tensor.detach())
    return view


def transposed(tensor: Tensor) -> Tensor:
    """Return the same numbers with the strides of the first and last dimension swapped."""
    return tensor.detach().transpose(0, -1).contiguous().transpose(0, -1)


def layouts(context: Context, case: Case) -> list[Outcome]:
    """The check "layouts"."""
    if context.device not in case.deterministic:
        reason = f"the case says that the op is not deterministic on {context.device}, so results cannot be compared"
        return context.not_run(case, reason)
    dtype = case.dtypes[0]
    plain = context.arguments(case, dtype, grad=False)
    tried = []
    for path, tensor in iter_tensors(plain):
        if tensor.layout == torch.strided and tensor.dim() > 0 and tensor.numel() > 1:
            tried.append((path, "strided", strided(tensor)))
            tried += [(path, "transposed", transposed(tensor))] if tensor.dim() > 1 else []
    if not tried:
        return []  # no tensor argument can be non-contiguous
    context.step("contiguous")
    expected = outputs_of(context, case, plain)
    refused = 0
    for path, how, changed in tried:
        context.step(f"{path} {how}")
        args = replace_tensor(context.arguments(case, dtype, grad=False), path, changed)
        try:
            result = outputs_of(context, case, args)
        except Exception as error:  # noqa: BLE001 (an op may raise anything)
            if case.contiguous_only:
                refused += 1
                continue
            advice = "support any strides; for an op that documents contiguous inputs, set contiguous_only in the case"
            return context.failed(case, f"with {path} {how} the op raises {sentence(error)}: {advice}")
        if failure := compare_outputs(result, expected, case, dtype):
            advice = "the kernel ignores strides: call contiguous() first, or use the strides"
            if expected.written:
                advice = f"{advice}; what the kernel writes to a contiguous copy of an argument must be copied back"
            return context.failed(case, f"with {path} {how}, {failure}: {advice}")
    figure = f"{len(tried)} layouts" + (f", {refused} refused" if refused else "")
    if requires_gradient(context, case) and "gradients" not in case.not_claimed:
        if failure := _gradients(context, case, dtype):
            return context.failed(case, failure)
        figure += ", gradients"
    return context.passed(case, figure)


def _gradients(context: Context, case: Case, dtype: torch.dtype) -> str | None:
    """Compare with expanded output gradients (all strides 0, as from `.sum().backward()`) and transposed ones."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return None

    def run(make: Any) -> list[Tensor] | None:  # noqa: ANN401
        args = context.arguments(case, dtype)
        inputs = leaves(args)
        outputs = differentiable(outputs_of(context, case, args).tensors)
        return backward(outputs, inputs, [make(one) for one in outputs]) if outputs else None

    for how, changed, plain in (
        ("expanded (stride 0, as from .sum().backward())", _expanded, lambda one: _expanded(one).contiguous()),
        ("transposed", lambda one: transposed(_ramp(one)) if one.dim() else _ramp(one), _ramp),
    ):
        context.step(f"backward with a contiguous copy of an output gradient that is {how}")
        expected = run(plain)
        if expected is None:
            return None  # the check "gradients" reports it
        context.step(f"backward, output gradient {how}")
        try:
            result = run(changed)
        except Exception as error:  # noqa: BLE001 (an op may raise anything)
            return f"with an output gradient that is {how}, backward raises {sentence(error)}: call contiguous() on it"
        failure = compare(result, detached(expected), case, dtype, subject="the gradients", scaled=True)
        if failure:
            return f"with an output gradient that is {how}, {failure}: call contiguous() on the output gradient"
    return None


def _expanded(output: Tensor) -> Tensor:
    return torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)


def _ramp(output: Tensor) -> Tensor:
    numbers = torch.arange(output.numel(), device=output.device, dtype=torch.float64) % 7 - 3
    return numbers.to(output.dtype).view(output.shape)
