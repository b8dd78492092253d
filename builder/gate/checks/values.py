"""The checks "values" and "edges": every dtype against the reference or invariant, and the inputs stay unchanged.

The process of the extension calls the op and sends the results as data; the judge compares them (`judge_process`).
Also the comparison of two results, which other checks use too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from builder.gate.amounts import counted
from builder.gate.case import Case
from builder.gate.checks.guard_pages import Canaries, dense, digest, mutable
from builder.gate.checks.outputs import Outputs, outputs, writable, write_results
from builder.gate.context import SIXTEEN_BITS, Context, dtype_name, flatten, iter_tensors, widened
from builder.gate.outcome import Outcome

#: How a sentence of `compare` names the other side, and what it must add: a reference is code of a person, too.
REFERENCE = "the reference has"
_EITHER_SIDE = "; if the reference in cases.py is the wrong side, correct it and test again"
_ROUNDED = (
    "so small a difference is a rounding to float32: a parameter or a step of the op is a float in C++: make it a"
    " `double`, round it in the reference too (`float(torch.tensor(x, dtype=torch.float32))`), or set `tolerances`"
)
#: Judges one dtype: returns what is wrong or None, and adds the largest error to the dictionary.
OneDtype = Callable[[Context, Case, torch.dtype, dict[str, float]], "str | None"]

#: The largest relative difference that a few roundings to float32 make (its epsilon is 1.2e-7).
_OF_FLOAT32 = 1e-6


def values(context: Context, case: Case) -> list[Outcome]:
    """The checks "values" and "edges" in the process of the extension, for a case that the judge cannot judge."""
    return check_each_dtype(context, case, one_dtype)


def send_values(context: Context, case: Case) -> list[Outcome]:
    """Call the op in every dtype and write the results for the judge; an outcome only if something is wrong."""
    sent: dict[str, Outputs] = {}
    for dtype in case.dtypes:
        context.step(dtype_name(dtype))
        result, failure, _ = call_op(context, case, dtype)
        if failure:
            return context.failed(case, f"{dtype_name(dtype)}: {failure}")
        sent[dtype_name(dtype)] = result
    write_results(context.data, sent)
    return []


def check_each_dtype(
    context: Context, case: Case, one: OneDtype, lacks: str = "the case has neither a reference nor an invariant"
) -> list[Outcome]:
    """Return the outcome of a case whose dtypes `one` judges.

    `lacks`: why there is nothing to compare with in a case without both; empty if `one` compares with something else.
    """
    errors: dict[str, float] = {}
    for dtype in case.dtypes:
        name = dtype_name(dtype)
        context.step(name)
        if failure := one(context, case, dtype, errors):
            return context.failed(case, f"{name}: {failure}", errors=errors)
        if case.reference is not None and name not in errors:
            what = "neither the op nor the reference returns a tensor or a number; add an invariant"
            return context.not_run(case, f"nothing to compare: {what}")
    if case.reference is None and case.invariant is None and lacks:
        return context.not_run(case, f"nothing to compare with: {lacks}")
    worst = max(errors.values(), default=0.0)
    figure = counted(len(case.dtypes), "dtype")
    return context.passed(case, f"{figure}, max error {worst:.2g}" if errors else figure, errors=errors)


def one_dtype(context: Context, case: Case, dtype: torch.dtype, errors: dict[str, float]) -> str | None:
    """Call the op and judge the result in one dtype, both in this process."""
    result, failure, args = call_op(context, case, dtype)
    if not failure and case.side_effects and case.invariant is not None:  # it looks at what these arguments name
        return broken_invariant(case.invariant, result.value, args)
    return failure or judge_result(context, case, dtype, result, errors)


def call_op(context: Context, case: Case, dtype: torch.dtype) -> tuple[Outputs, str | None, Sequence[Any]]:
    """Call the op; return what it gives, what is wrong with its writes or None, and the arguments.

    The result of an op that returns nothing is what it has written to its arguments.
    """
    args = context.arguments(case, dtype, grad=False)
    written = mutable(context, case)
    canaries = Canaries(args, written)
    done = outputs(context.call(case, canaries.args), canaries.args, written)
    if context.device == "cuda":
        torch.cuda.synchronize()
    return done, canaries.failure(), canaries.args


def judge_result(
    context: Context, case: Case, dtype: torch.dtype, result: Outputs, errors: dict[str, float]
) -> str | None:
    """Return what is wrong with the result of `call_op`, or None. Adds the largest error to `errors`."""
    args = context.arguments(case, dtype, grad=False)
    if case.invariant is not None:
        return broken_invariant(case.invariant, result.value, as_left(args, result.beside))
    if case.reference is None:
        return None
    expected = expected_outputs(context, case, args, set(result.written))
    if flatten(result.value) or flatten(expected.value):
        errors[dtype_name(dtype)] = largest_error(result.value, expected.value)
    failure = compare(result.value, expected.value, case, dtype, other=REFERENCE)
    for position, arg in sorted(result.beside.items()):  # written to, and not returned
        if failure:
            break
        theirs = expected.written.get(position)
        failure = compare(arg, theirs, case, dtype, argument_after(position), other=REFERENCE)
        if failure and theirs is not None:
            before = widened(context.arguments(case, dtype, grad=False))[position]
            if digest(*flatten(before)) == digest(*flatten(theirs)):
                cure = "let it write to the argument as the op does"
                failure += f"; the reference does not change this argument: {cure}"
    return failure and either_side(failure)


def either_side(failure: str) -> str:
    """The difference of an op from its reference, with what to do: either may be wrong."""
    return failure if failure.endswith(_ROUNDED) else failure + _EITHER_SIDE


def as_left(args: Sequence[Any], beside: Mapping[int, Any]) -> list[Any]:
    """Return the arguments as an invariant gets them: those that the op returns are as before the call."""
    return [beside.get(position, arg) for position, arg in enumerate(args)]


def expected_outputs(context: Context, case: Case, args: Sequence[Any], written: Set[int]) -> Outputs:
    """Call the reference with these arguments; the op may write to those at the positions `written`.

    A reference that returns nothing has its result in its arguments, as the op has.
    """
    theirs = widened(writable(args, written))
    before = {path: digest(tensor) for path, tensor in iter_tensors(theirs)}
    value = context.expected(case, theirs)
    changed = {path.position for path, tensor in iter_tensors(theirs) if digest(tensor) != before[path]}
    return outputs(value, theirs, {*written, *changed})


def broken_invariant(invariant: Callable[..., None], result: Any, args: Sequence[Any]) -> str | None:  # noqa: ANN401
    """Return the message of the assert in cases.py that fails, as a sentence, or None."""
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
    other: str = "expected",
) -> str | None:
    """Return the difference as a sentence with the largest error and its index; None if the results agree.

    `subject` and `other` name the two sides in the sentence.

    Compares tensors, or nested tuples, lists and dicts of them. Shapes and dtypes must be equal, but a float32
    reference may stand for a 16-bit result. NaN equals NaN. The tolerance is that of the case for `dtype`:
    |actual - expected| <= atol + rtol * |expected|. `scaled` is for sums of many terms, such as gradients: rtol then
    applies to the largest expected number, because terms that cancel leave rounding errors of that size.
    """
    have, want = flatten(actual), flatten(expected)
    if len(have) != len(want):
        return f"{subject} has {len(have)} tensors, {other} {len(want)}"
    for index, (one, wanted) in enumerate(zip(have, want)):
        name = subject if len(have) == 1 else f"{subject}[{index}]"
        failure = _compare_tensors(dense(one), dense(wanted), case, dtype, (name, other), scaled)
        if failure:
            return failure
    return None


def compare_outputs(
    actual: Outputs, expected: Outputs, case: Case, dtype: torch.dtype, subject: str = "the result"
) -> str | None:
    """Return how two calls differ, in their results or in what they wrote to their arguments; None if they agree."""
    failure = compare(actual.value, expected.value, case, dtype, subject)
    for position, arg in expected.written.items():
        failure = failure or compare(actual.written[position], arg, case, dtype, argument_after(position))
    return failure


def argument_after(position: int) -> str:
    """Name an argument that an op has written to, for a sentence."""
    return f"argument {position} after the call"


def _compare_tensors(
    have: Tensor, want: Tensor, case: Case, dtype: torch.dtype, sides: tuple[str, str], scaled: bool
) -> str | None:
    name, other = sides
    if have.shape != want.shape:
        return f"{name} has shape {tuple(have.shape)}, {other} {tuple(want.shape)}"
    if have.dtype != want.dtype and not (have.dtype in SIXTEEN_BITS and want.dtype == torch.float32):
        return f"{name} is {have.dtype}, {other} {want.dtype}".replace("torch.", "")
    if have.dtype == torch.complex32:  # torch compares none
        have, want = have.to(torch.complex64), want.to(torch.complex64)
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
    # NaN against a number counts as infinity, so that it is the largest.
    size = torch.where(wrong, torch.nan_to_num(size, nan=float("inf"), posinf=float("inf")), torch.zeros_like(size))
    index = (size == size.max()).nonzero()[0].tolist()
    actual, expected = have[tuple(index)].item(), want[tuple(index)].item()
    form = "" if have.dtype == torch.bool else ".6g" if f"{actual:.6g}" != f"{expected:.6g}" else ".12g"
    where = f" at {index}" if index else ""
    text = f"{name} is {actual:{form}}{where}, {other} {expected:{form}}"
    if have.numel() == 1:
        return text if have.dtype == torch.bool else f"{text} ({allowed})"
    largest = float(size.max())
    text += f"; {int(wrong.sum())} of {have.numel()} elements differ, at most by {largest:.3g} ({allowed})"
    if dtype == torch.float64 and largest < _OF_FLOAT32 * abs(expected):
        text += f"; {_ROUNDED}"
    return text


def largest_error(actual: Any, expected: Any) -> float:  # noqa: ANN401
    """Return the largest absolute difference of tensors with equal shapes; 0.0 if there is nothing to compare."""
    worst = 0.0
    for one, other in zip(flatten(actual), flatten(expected)):
        if one.shape == other.shape and one.numel():
            wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
            error = float((dense(one).to(wide) - dense(other).to(wide)).abs().max())
            worst = error if math.isnan(error) else max(worst, error)
    return worst
