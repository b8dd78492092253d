"""The check "gradients": against the reference in every floating dtype, and against finite differences."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.gradcheck import GradcheckError

from builder.gate.amounts import counted
from builder.gate.case import Case
from builder.gate.checks.dispatch import has_kernel
from builder.gate.checks.guard_pages import mutable
from builder.gate.checks.outputs import outputs_of
from builder.gate.checks.values import REFERENCE, compare, either_side, expected_outputs
from builder.gate.context import Context, TensorPath, dtype_name, flatten, iter_tensors, map_tensors, sentence
from builder.gate.imports.libraries import loaded_code
from builder.gate.imports.registration import backward_of, no_autograd
from builder.gate.outcome import CHECKED, LOST, RECORDED, REFUSED, Outcome, without_overload

#: A class whose backward is code of the package.
_FUNCTION = re.compile(r"^\s*class \w+\([\w.]*\bFunction\)", re.MULTILINE)
#: The node that torch records for an op without a formula for its gradient, since torch 2.1; its backward only warns.
_NO_FORMULA = "WarnNotImplemented"
_RECORDED = (
    "it is right on the CPU, where torch's own operations inside the function make it; only `gpu-values`"
    " shows whether its kernels for CUDA have one"
)


def gradients(context: Context, case: Case) -> list[Outcome]:
    """The check "gradients"; no outcome if a different case of the op covers it, or the op has no gradient."""
    if not requires_gradient(context, case):
        return _not_required(context, case)
    if not _comparable(case):
        same = [other for other in context.cases if other.op == case.op]
        if any(_comparable(other) and requires_gradient(context, other) for other in same):
            return []
        reason = "nothing to compare gradients with: the case has neither a reference nor gradcheck=True"
        return context.not_run(case, reason)
    figures = []
    if case.reference is not None:
        floating = [dtype for dtype in case.dtypes if dtype.is_floating_point or dtype.is_complex]
        for dtype in floating:
            name = dtype_name(dtype)
            context.step(f"{name}, backward")
            if failure := _against_reference(context, case, dtype):
                return context.failed(case, f"{name}: {failure}")
        figures += [counted(len(floating), "dtype")] if floating else []
    if case.gradcheck and context.device == "cpu":
        context.step(f"gradcheck in {dtype_name(_gradcheck_dtype(case))}")
        if failure := _gradcheck(context, case):
            return context.failed(case, failure)
        figures.append("gradcheck")
    if not figures:  # no dtype has gradients, or gradcheck needs a CPU kernel
        return context.not_run(case, "there is nothing to compare with: add a reference to the case")
    if _is_for_cuda_too(context, case) and (found := _of_the_cpu_alone(context, case)):
        return found
    return context.passed(case, ", ".join(figures), gradient=CHECKED)


def requires_gradient(context: Context, case: Case) -> bool:
    """Whether an input of the case requires a gradient."""
    return any(tensor.requires_grad for tensor in _tensors(context, case))


def _comparable(case: Case) -> bool:
    return case.reference is not None or case.gradcheck


def _not_required(context: Context, case: Case) -> list[Outcome]:
    """Find out whether an op has a gradient although no case has an input with `grad=True`; once for each op.

    The op passes if its backward raises, as the backward of a backward may. A gradient that no case tests is "not run",
    also if the op refuses inputs that require one. An op without a gradient loses those of its inputs.
    """
    same = [other for other in context.cases if other.op == case.op]
    floating = [other for other in same if any(map(_can_require, _tensors(context, other)))]
    if not floating or case is not min(floating, key=lambda one: bool(one.edge)):
        return []
    if any(requires_gradient(context, other) for other in same):
        return []
    args = map_tensors(context.arguments(case), lambda _, one: one.detach().requires_grad_(_can_require(one)))
    inputs = leaves(args)
    context.step("an op whose cases require no gradient, with inputs that require one")
    try:
        done = outputs_of(context, case, args)
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        op = context.overload(case)
        if op is None or not any(has_kernel(op.name(), f"Autograd{device}") for device in ("", "CPU", "CUDA")):
            return []  # no formula for a gradient is registered and none is lost: the op refuses such inputs
        return context.not_run(case, f"no case requires a gradient, and with one the op raises {sentence(error)}")
    outputs = differentiable(done.tensors)
    # An argument that the op wrote to has the copy of `outputs_of` if autograd did not record the call.
    copies = {id(one) for one in flatten(list(done.written.values())) if _node(one).startswith("CloneBackward")}
    if not any(id(one) not in copies and _NO_FORMULA not in _node(one) for one in outputs):
        return _without_gradient(context, case) if any(map(_can_require, done.tensors)) else []
    if _is_for_cuda_too(context, case) and _is_recorded(outputs):
        joined, partner = _partner_on_cuda(context, case.op)
        if joined or partner:
            return [] if joined else context.failed(case, _lost(case.op, partner, "on CUDA "), gradient=LOST)
    context.step("backward of an op whose cases require no gradient")
    try:
        backward(outputs, inputs, seeds(outputs))
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        reason = f"no case requires a gradient, and backward raises {sentence(error)}"
        return context.passed(case, reason, gradient=REFUSED)
    return context.not_run(case, "the op has a gradient, but no case tests it: make an input with grad=True")


def _tensors(context: Context, case: Case) -> list[Tensor]:
    return [tensor for _, tensor in iter_tensors(context.arguments(case))]


def _can_require(tensor: Tensor) -> bool:
    """Whether tensors of this dtype can have a gradient."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _is_for_cuda_too(context: Context, case: Case) -> bool:
    """Whether a check on the CPU leaves open what kernels for CUDA do: the case claims them, and the wheel has some."""
    return context.device == "cpu" and "cuda" in case.devices and loaded_code(context.spec.imports)[0]


def _of_the_cpu_alone(context: Context, case: Case) -> list[Outcome]:
    """Report a right gradient that torch's own operations inside the op made, which CUDA does not call."""
    context.step("what autograd records")
    if not _is_recorded(differentiable(outputs_of(context, case, context.arguments(case)).tensors)):
        return []
    joined, partner = _partner_on_cuda(context, case.op)
    if partner and not joined:
        return context.failed(case, _lost(case.op, partner, "on CUDA "), gradient=LOST)
    return context.not_run(case, _RECORDED, gradient=RECORDED)


def _is_recorded(outputs: Sequence[Tensor]) -> bool:
    """Whether there is a gradient that only torch's own operations compute.

    torch records its own operations inside a pybind function or an op without a formula, so a branch for the CPU that
    calls them has a gradient. The kernel that the branch for CUDA starts has none.
    """
    nodes = [one.grad_fn for one in outputs]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        name = node.name()
        own = "::" in name and not name.startswith("torch::autograd::")
        if own or "CppNode" in name or _NO_FORMULA in name or isinstance(node, BackwardCFunction):
            return False
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        nodes += following
    return bool(outputs)


def _partner_on_cuda(context: Context, op: str) -> tuple[bool, str]:
    """As _partner, without a backward that C++ of the wheel may join to the op in the branch for CUDA."""
    joined, partner = _partner(context, op)
    return joined, "" if loaded_code(context.spec.imports)[1] else partner


def _without_gradient(context: Context, case: Case) -> list[Outcome]:
    """Report an op that loses gradients: it fails if another op computes them, and is a remark else.

    No outcome for a backward itself, and none if code of the package may join the op to its backward.
    """
    joined, partner = _partner(context, case.op)
    if joined:
        return []
    if partner:
        return context.failed(case, _lost(case.op, partner), gradient=LOST)
    [outcome] = context.not_run(case, _lost(case.op), gradient=LOST)
    return [replace(outcome, remark=True)]


def _partner(context: Context, op: str) -> tuple[bool, str]:
    """Whether code of the package may join an op to its backward, or it is one; and the backward beside it, or ""."""
    space, _, name = without_overload(op).rpartition("::" if "::" in op else ".")
    others = [without_overload(one).rpartition("::" if "::" in one else ".") for one in context.ops]
    names = {other for place, _, other in others if place == space}
    packages = [sys.modules.get(one.partition(".")[0]) for one in context.spec.imports]
    folders = [Path(folder) for package in packages for folder in getattr(package, "__path__", ())]
    texts = [path.read_text(encoding="utf-8", errors="replace") for one in folders for path in one.rglob("*.py")]
    joined = any(map(_FUNCTION.search, texts)) and any(re.search(rf"\b{name}\b", text) for text in texts)
    return joined or any(backward_of(other, {name}) for other in names), backward_of(name, names)


def _lost(op: str, partner: str = "", where: str = "") -> str:
    although = f", although {partner} computes them" if partner else ""
    return (
        f"{where}it has no gradient: the gradients of its inputs are lost{although}"
        f'; {no_autograd(op)}, or, if it needs none, write `not_claimed={{"gradients": REASON}}` in its Case'
    )


def leaves(args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that require a gradient, in order."""
    return [tensor for _, tensor in iter_tensors(args) if tensor.requires_grad]


def differentiable(result: Any) -> list[Tensor]:  # noqa: ANN401
    """Return the tensors of a result that require a gradient."""
    return [tensor for tensor in flatten(result) if tensor.requires_grad]


def seeds(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return an output gradient for each output: random numbers, the same for the same shapes."""
    generator = torch.Generator().manual_seed(1)

    def part(one: Tensor) -> Tensor:
        return torch.randn(one.shape, dtype=torch.float64, generator=generator)

    return [
        (torch.complex(part(one), part(one)) if one.is_complex() else part(one)).to(one.device, one.dtype)
        for one in outputs
    ]


def backward(outputs: Sequence[Tensor], inputs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of each input, zeros for an unused input.

    Call `leaves` before the op: a tensor that the op writes into requires a gradient afterwards.
    """
    found = torch.autograd.grad(list(outputs), list(inputs), list(given), allow_unused=True)
    return [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, inputs)]


def _against_reference(context: Context, case: Case, dtype: torch.dtype) -> str | None:
    theirs = context.arguments(case, dtype)
    their_leaves = leaves(theirs)
    reference = expected_outputs(context, case, theirs, mutable(context, case))
    if not differentiable(reference.tensors):
        return "the result of the reference has no gradient, but inputs require one: use differentiable operations"
    ours = context.arguments(case, dtype)
    our_leaves = leaves(ours)
    names = [str(path) for path, tensor in iter_tensors(ours) if tensor.requires_grad]
    done = outputs_of(context, case, ours)
    actual, expected = flatten(done.value), flatten(reference.value)
    if len(actual) != len(expected):
        return f"the op returns {len(actual)} tensors, the reference returns {len(expected)}"
    for index, (one, other) in enumerate(zip(actual, expected)):
        if other.requires_grad and not one.requires_grad:
            return f"result {index} has no gradient: {no_autograd(case.op)}"
    if any(_NO_FORMULA in _node(one) for one in actual):
        return _without_formula(case.op)
    # A written argument that the op does not return, such as a running mean, needs no gradient.
    actual += flatten(list(done.beside.values()))
    expected += flatten([reference.written[position] for position in done.beside])
    positions = [i for i, one in enumerate(actual) if one.requires_grad and expected[i].requires_grad]
    outputs, wanted = [actual[i] for i in positions], [expected[i] for i in positions]
    given = seeds(outputs)
    try:
        found = backward(outputs, our_leaves, given)
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        return f"backward raises {sentence(error)}"
    if context.device == "cuda":
        torch.cuda.synchronize()
    wanted_gradients = backward(wanted, their_leaves, [one.to(like.dtype) for one, like in zip(given, wanted)])
    for name, one, other in zip(names, found, wanted_gradients):
        failure = compare(one, other, case, dtype, f"the gradient of {name}", scaled=True, other=REFERENCE)
        if failure:
            return either_side(failure)
    return None


def _without_formula(op: str) -> str:
    return (
        f"no autograd is registered for the op: {no_autograd(op)}, or, if the op has no gradient, remove `grad=True`"
        " from the inputs of the case"
    )


def _node(tensor: Tensor) -> str:
    """The name of the node that autograd recorded for a tensor, or ""."""
    return str(tensor.grad_fn.name()) if tensor.grad_fn is not None else ""


def _gradcheck_dtype(case: Case) -> torch.dtype:
    return torch.complex128 if all(dtype.is_complex for dtype in case.dtypes) else torch.float64


def _gradcheck(context: Context, case: Case) -> str | None:
    args = context.arguments(case, _gradcheck_dtype(case))
    inputs, written = leaves(args), mutable(context, case)

    def function(*changed: Tensor) -> tuple[Tensor, ...]:
        given = iter(changed)

        def one(path: TensorPath, old: Tensor) -> Tensor:
            if old.requires_grad:
                return next(given)
            return old.clone() if path.position in written else old

        return tuple(differentiable(outputs_of(context, case, map_tensors(args, one)).tensors))

    outputs = function(*inputs)
    if not outputs:
        return f"no result has a gradient: {no_autograd(case.op)}"
    if any(_NO_FORMULA in _node(one) for one in outputs):
        return _without_formula(case.op)
    try:
        # The check "repeat" tests determinism.
        torch.autograd.gradcheck(function, inputs, nondet_tol=float("inf"))
    except GradcheckError as error:
        return f"gradcheck: {' '.join(str(error).split())[:400]}"
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        return f"gradcheck: the op raises {sentence(error)}"
    return None
