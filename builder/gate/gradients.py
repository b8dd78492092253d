"""Gradients: against the reference's in every floating dtype, and against finite differences in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.context import Context, compare, flatten, mapped, places, sentence
from builder.gate.dispatch import has_kernel
from builder.gate.outcome import Outcome


def gradients(context: Context, case: Case) -> list[Outcome]:
    """The check "gradients"; no outcome where another case of the op is held to it, or the op registers none."""
    if not asked_for(context, case):
        return _unasked(context, case)
    if not _measured(case):
        if any(_measured(other) and asked_for(context, other) for other in _same_op(context, case)):
            return []
        return [context.not_run("gradients", case, "the case has no reference, and does not ask for gradcheck")]
    figures = []
    if case.reference is not None:
        floating = [dtype for dtype in case.dtypes if dtype.is_floating_point or dtype.is_complex]
        for dtype in floating:
            name = str(dtype).replace("torch.", "")
            context.doing(f"{name}, backward")
            fault = _against_reference(context, case, dtype)
            if fault:
                return [context.failed("gradients", case, f"{name}: {fault}")]
        figures += [f"{len(floating)} dtype{'s' if len(floating) > 1 else ''}"] if floating else []
    if case.gradcheck and context.device == "cpu":
        context.doing("gradcheck in float64")
        fault = _gradcheck(context, case)
        if fault:
            return [context.failed("gradients", case, fault)]
        figures.append("gradcheck")
    if not figures:  # no dtype with gradients, or gradcheck, which takes the CPU, of an op without a kernel there
        return [context.not_run("gradients", case, "nothing to compare with here: give the case a reference")]
    return [context.passed("gradients", case, ", ".join(figures))]


def asked_for(context: Context, case: Case) -> bool:
    """Whether an input of the case asks for a gradient."""
    return any(tensor.requires_grad for _, tensor in places(context.arguments(case)))


def _measured(case: Case) -> bool:
    return case.reference is not None or case.gradcheck


def _same_op(context: Context, case: Case) -> list[Case]:
    return [other for other in context.cases if other.op == case.op]


def _unasked(context: Context, case: Case) -> list[Outcome]:
    """The first case of an op that registers a gradient no case asks for: the op may be one that refuses it.

    The backward of a backward, say. What it must not do is hand out a gradient nobody looked at.
    """
    same = _same_op(context, case)
    if case is not same[0] or any(asked_for(context, other) for other in same) or not _registers(context, case):
        return []
    given = context.arguments(case)
    args = mapped(given, lambda _, one: one.detach().requires_grad_() if one.is_floating_point() else one)
    asking = leaves(args)
    carrying = differentiable(context.call(case, args))
    if not carrying:
        return []
    context.doing("backward, which no case asks for")
    try:
        backward(carrying, asking, seeds(carrying))
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        return [context.passed("gradients", case, f"refuses one: {sentence(error)}")]
    reason = "it registers a gradient, and no case asks for one: make an input with grad=True"
    return [context.not_run("gradients", case, reason)]


def _registers(context: Context, case: Case) -> bool:
    """Whether the dispatcher has a gradient formula for the op."""
    op = context.overload(case)
    return op is not None and any(has_kernel(op.name(), key) for key in ("Autograd", "AutogradCPU", "AutogradCUDA"))


def leaves(args: Sequence[Any]) -> list[Tensor]:
    """The tensors that ask for a gradient, in order."""
    return [tensor for _, tensor in places(args) if tensor.requires_grad]


def differentiable(result: Any) -> list[Tensor]:  # noqa: ANN401
    """The tensors of an answer that carry a gradient."""
    return [tensor for tensor in flatten(result) if tensor.requires_grad]


def seeds(outputs: Sequence[Tensor]) -> list[Tensor]:
    """A gradient for each output: random numbers, the same for the same shapes."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(one.shape, dtype=torch.float64, generator=generator).to(one.device, one.dtype) for one in outputs
    ]


def backward(outputs: Sequence[Tensor], inputs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of each input, zeros for one that none flows to.

    Ask for the `leaves` before the op is called: a tensor it writes into asks for a gradient afterwards.
    """
    found = torch.autograd.grad(list(outputs), list(inputs), list(given), allow_unused=True)
    return [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, inputs)]


def _against_reference(context: Context, case: Case, dtype: torch.dtype) -> str | None:
    theirs = context.arguments(case, dtype)
    their_leaves = leaves(theirs)
    expected = flatten(context.expected(case, theirs))
    if not any(one.requires_grad for one in expected):
        return "the reference carries no gradient, though inputs ask for one: write it in differentiable operations"
    ours = context.arguments(case, dtype)
    our_leaves = leaves(ours)
    names = [str(place) for place, tensor in places(ours) if tensor.requires_grad]
    actual = flatten(context.call(case, ours))
    if len(actual) != len(expected):
        return f"the op answers {len(actual)} tensors, the reference {len(expected)}"
    for index, (one, other) in enumerate(zip(actual, expected)):
        if other.requires_grad and not one.requires_grad:
            return (
                f"result {index} carries no gradient: torch.library.register_autograd, or autograd.Function, is missing"
            )
    carrying = [i for i, one in enumerate(actual) if one.requires_grad and expected[i].requires_grad]
    outputs, wanted = [actual[i] for i in carrying], [expected[i] for i in carrying]
    given = seeds(outputs)
    try:
        got = backward(outputs, our_leaves, given)
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        return f"backward raises {sentence(error)}"
    if context.device == "cuda":
        torch.cuda.synchronize()
    due = backward(wanted, their_leaves, [one.to(like.dtype) for one, like in zip(given, wanted)])
    for name, one, other in zip(names, got, due):
        fault = compare(one, other, case, dtype, subject=f"the gradient of {name}", scaled=True)
        if fault:
            return fault
    return None


def _gradcheck(context: Context, case: Case) -> str | None:
    args = context.arguments(case, torch.float64)
    inputs = leaves(args)

    def function(*changed: Tensor) -> tuple[Tensor, ...]:
        given = iter(changed)
        result = context.call(case, mapped(args, lambda _, old: next(given) if old.requires_grad else old))
        return tuple(differentiable(result))

    if not function(*inputs):
        return "no result carries a gradient: torch.library.register_autograd, or autograd.Function, is missing"
    try:
        # Determinism is the business of "repeat", and an op may say that it has none.
        torch.autograd.gradcheck(function, inputs, nondet_tol=float("inf"))
    except torch.autograd.gradcheck.GradcheckError as error:
        return f"gradcheck: {' '.join(str(error).split())[:400]}"
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        return f"gradcheck: the op raises {sentence(error)}"
    return None
