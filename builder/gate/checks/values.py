"""The checks "values" and "edges": every dtype against the reference or invariant, and the inputs stay unchanged.

Also the comparison of two results, which other checks use too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.checks.guard_pages import Canaries, mutable
from builder.gate.context import SIXTEEN_BITS, Context, flatten, widened
from builder.gate.outcome import Outcome


def values(context: Context, case: Case) -> list[Outcome]:
    """The check "values"."""
    return _check("values", context, case)


def edges(context: Context, case: Case) -> list[Outcome]:
    """The check "edges": the same for cases with an empty or single-element batch."""
    return _check("edges", context, case)


def _check(check: str, context: Context, case: Case) -> list[Outcome]:
    errors: dict[str, float] = {}
    for dtype in case.dtypes:
        name = str(dtype).replace("torch.", "")
        context.step(name)
        failure = one_dtype(context, case, dtype, errors)
        if failure:
            return [context.failed(check, case, f"{name}: {failure}", errors=errors)]
        if case.reference is not None and name not in errors:
            reason = (
                "nothing to compare: neither the op nor the reference returns a tensor or a number; add an invariant"
            )
            return [context.not_run(check, case, reason)]
    if case.reference is None and case.invariant is None:
        return [
            context.not_run(check, case, "nothing to compare with: the case has neither a reference nor an invariant")
        ]
    worst = max(errors.values(), default=0.0)
    figure = f"{len(case.dtypes)} dtype{'s' if len(case.dtypes) > 1 else ''}"
    return [context.passed(check, case, f"{figure}, max error {worst:.2g}" if errors else figure, errors=errors)]


def one_dtype(context: Context, case: Case, dtype: torch.dtype, errors: dict[str, float]) -> str | None:
    """Run and compare in one dtype; return what is wrong or None. Adds the largest error to `errors`.

    The result of an op that returns nothing is what it has written to its arguments. The same applies to its reference.
    """
    args = context.arguments(case, dtype, grad=False)
    written = mutable(context, case)
    canaries = Canaries(args, written)
    result = _or_written(context.call(case, canaries.args), canaries.args, written)
    if context.device == "cuda":
        torch.cuda.synchronize()
    failure = canaries.failure()
    if failure:
        return failure
    if case.invariant is not None:
        return _invariant(case.invariant, result, args)
    if case.reference is None:
        return None
    theirs = widened(context.arguments(case, dtype, grad=False))
    expected = _or_written(context.expected(case, theirs), theirs, written)
    if flatten(result) or flatten(expected):
        errors[str(dtype).replace("torch.", "")] = largest_error(result, expected)
    return compare(result, expected, case, dtype)


def _or_written(result: Any, args: Sequence[Any], written: Set[int]) -> Any:  # noqa: ANN401
    """Return the result or, if it has no tensor, the arguments that were written, in their order."""
    if flatten(result):
        return result
    return [args[position] for position in sorted(written) if position < len(args)] or result


def _invariant(invariant: Callable[..., None], result: Any, args: Sequence[Any]) -> str | None:  # noqa: ANN401
    try:
        invariant(result, *args)
    except AssertionError as error:
        return f"the invariant does not hold: {' '.join(str(error).split()) or 'its assert in cases.py has no message'}"
    return None


def compare(
    actual: Any,  # noqa: ANN401
    expected: Any,  # noqa: ANN401
    case: Case,
    dtype: torch.dtype,
    subject: str = "the result",
    *,
    scaled: bool = False,
) -> str | None:
    """Return the difference as a sentence with the largest error and its index; None if the results agree.

    Compares tensors, or nested tuples, lists and dicts of them. Shapes and dtypes must be equal, but a float32
    reference may stand for a 16-bit result. NaN equals NaN. The tolerance is that of the case for `dtype`:
    |actual - expected| <= atol + rtol * |expected|. `scaled` is for sums of many terms, such as gradients: rtol then
    applies to the largest expected number, because terms that cancel leave rounding errors of that size.
    """
    have, want = flatten(actual), flatten(expected)
    if len(have) != len(want):
        return f"{subject} has {len(have)} tensors, expected {len(want)}"
    for index, (one, other) in enumerate(zip(have, want)):
        name = subject if len(have) == 1 else f"{subject}[{index}]"
        failure = _compare_tensors(one.detach().cpu(), other.detach().cpu(), case, dtype, name, scaled)
        if failure:
            return failure
    return None


def _compare_tensors(have: Tensor, want: Tensor, case: Case, dtype: torch.dtype, name: str, scaled: bool) -> str | None:
    if have.shape != want.shape:
        return f"{name} has shape {tuple(have.shape)}, expected {tuple(want.shape)}"
    if have.dtype != want.dtype and not (have.dtype in SIXTEEN_BITS and want.dtype == torch.float32):
        return f"{name} is {have.dtype}, expected {want.dtype}".replace("torch.", "")
    if have.numel() == 0 or torch.equal(have, want):
        return None
    if not (have.is_floating_point() or have.is_complex()):
        wrong, size = have != want, (have.double() - want.double()).abs()
        allowed = "no difference is allowed: integers and bools must be equal"
    else:
        rtol, atol = case.tolerance(dtype)
        wide = torch.complex128 if have.is_complex() else torch.float64
        have, want = have.to(wide), want.to(wide)
        if scaled:
            atol += rtol * float(torch.nan_to_num(want.abs(), nan=0.0, posinf=0.0).max())
        wrong = ~torch.isclose(have, want, rtol=rtol, atol=atol, equal_nan=True)
        allowed, size = f"allowed: {atol:g} + {rtol:g} * expected", (have - want).abs()
    if not bool(wrong.any()):
        return None
    # NaN against a number counts as infinity, so that argmax finds it.
    size = torch.where(wrong, torch.nan_to_num(size, nan=float("inf"), posinf=float("inf")), torch.zeros_like(size))
    worst = int(size.argmax())
    where = _unravel(worst, have.shape)
    actual, expected = have.reshape(-1)[worst].item(), want.reshape(-1)[worst].item()
    return (
        f"{name} is {actual:.6g} at {where}, expected {expected:.6g}; {int(wrong.sum())} of {have.numel()} elements "
        f"differ, at most by {float(size.reshape(-1)[worst]):.3g} ({allowed})"
    )


def largest_error(actual: Any, expected: Any) -> float:  # noqa: ANN401
    """Return the largest absolute difference of tensors with equal shapes; 0.0 if there is nothing to compare."""
    worst = 0.0
    for one, other in zip(flatten(actual), flatten(expected)):
        if one.shape == other.shape and one.numel() and not one.is_complex():
            error = float((one.detach().double().cpu() - other.detach().double().cpu()).abs().max())
            worst = error if math.isnan(error) else max(worst, error)
    return worst


def _unravel(index: int, shape: Sequence[int]) -> list[int]:
    where: list[int] = []
    for size in reversed(shape):
        where.append(index % size)
        index //= size
    return where[::-1]
