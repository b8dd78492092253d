"""Layouts: each tensor argument non-contiguous in two ways, and output gradients as autograd really makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.context import Context, compare, detached, places, replaced, sentence
from builder.gate.gradients import asked_for, backward, differentiable, leaves
from builder.gate.outcome import Outcome


def strided(tensor: Tensor) -> Tensor:
    """The same numbers as every second element of a buffer twice as wide, one element into it."""
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 77, dtype=torch.float32, device=tensor.device)
    wide = wide.to(tensor.dtype)
    view = wide[..., 1::2]
    view.copy_(tensor.detach())
    return view


def transposed(tensor: Tensor) -> Tensor:
    """The same numbers, laid out with the first and the last dimension exchanged."""
    return tensor.detach().transpose(0, -1).contiguous().transpose(0, -1)


def layouts(context: Context, case: Case) -> list[Outcome]:
    """The check "layouts"."""
    if context.device not in case.deterministic:
        reason = f"the case says the op is not deterministic on {context.device}: there is nothing to compare with"
        return [context.not_run("layouts", case, reason)]
    dtype = context.dtype(case)
    plain = context.arguments(case, dtype, grad=False)
    tried = list(_variants(plain))
    if not tried:
        return []  # no argument is a tensor that could be non-contiguous
    context.doing("contiguous")
    due = context.call(case, plain)
    refused = 0
    for place, how, changed in tried:
        context.doing(f"{place} {how}")
        args = replaced(context.arguments(case, dtype, grad=False), place, changed)
        try:
            got = context.call(case, args)
        except Exception as error:  # noqa: BLE001 (an op may raise anything)
            if case.contiguous_only:
                refused += 1
                continue
            advice = "take any strides, or say contiguous_only in the case if the documentation says so"
            return [context.failed("layouts", case, f"with {place} {how} the op raises {sentence(error)}: {advice}")]
        fault = compare(got, due, case, dtype)
        if fault:
            advice = "the kernel ignores strides: call contiguous() first, or use the strides"
            return [context.failed("layouts", case, f"with {place} {how}, {fault}: {advice}")]
    figure = f"{len(tried)} layouts" + (f", {refused} refused" if refused else "")
    if asked_for(context, case) and "gradients" not in case.not_claimed:
        fault = _gradients(context, case, dtype)
        if fault:
            return [context.failed("layouts", case, fault)]
        figure += ", gradients"
    return [context.passed("layouts", case, figure)]


def _variants(args: tuple[Any, ...]) -> Iterator[tuple[Any, str, Tensor]]:
    for place, tensor in places(args):
        if tensor.layout != torch.strided or tensor.dim() == 0 or tensor.numel() < 2:
            continue
        yield place, "strided", strided(tensor)
        if tensor.dim() > 1:
            yield place, "transposed", transposed(tensor)


def _gradients(context: Context, case: Case, dtype: torch.dtype) -> str | None:
    """Expanded gradients, stride 0 everywhere, as `.sum().backward()` gives; and transposed ones."""
    if not dtype.is_floating_point:
        return None

    def run(make: Any) -> list[Tensor] | None:  # noqa: ANN401
        args = context.arguments(case, dtype)
        asking = leaves(args)
        outputs = differentiable(context.call(case, args))
        return backward(outputs, asking, [make(one) for one in outputs]) if outputs else None

    for how, changed, plain in (
        ("expanded (stride 0, as from .sum().backward())", _expanded, lambda one: _expanded(one).contiguous()),
        ("transposed", lambda one: transposed(_ramp(one)) if one.dim() else _ramp(one), _ramp),
    ):
        context.doing(f"backward, contiguous output gradient for {how}")
        due = run(plain)
        if due is None:
            return None  # "gradients" says so already
        context.doing(f"backward, output gradient {how}")
        try:
            got = run(changed)
        except Exception as error:  # noqa: BLE001 (an op may raise anything)
            return f"with an output gradient that is {how}, backward raises {sentence(error)}"
        fault = compare(got, detached(due), case, dtype, subject="the gradients", scaled=True)
        if fault:
            return f"with an output gradient that is {how}, {fault}: call contiguous() on it in backward"
    return None


def _expanded(output: Tensor) -> Tensor:
    return torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)


def _ramp(output: Tensor) -> Tensor:
    numbers = torch.arange(output.numel(), device=output.device, dtype=torch.float64) % 7 - 3
    return numbers.to(output.dtype).view(output.shape)
