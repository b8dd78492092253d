"""Values: the op executed in every dtype it claims, against its reference or its invariant; its inputs left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from builder.gate.case import Case
from builder.gate.context import Context, compare, flatten, largest_error
from builder.gate.fences import Canaries, mutable
from builder.gate.outcome import Outcome


def values(context: Context, case: Case) -> list[Outcome]:
    """The check "values"."""
    return _executed("values", context, case)


def edges(context: Context, case: Case) -> list[Outcome]:
    """The check "edges": the same for a case that stands for an empty or a single-element batch."""
    return _executed("edges", context, case)


def _executed(check: str, context: Context, case: Case) -> list[Outcome]:
    errors: dict[str, float] = {}
    for dtype in case.dtypes:
        name = str(dtype).replace("torch.", "")
        context.doing(name)
        fault = one_dtype(context, case, dtype, errors)
        if fault:
            return [context.failed(check, case, f"{name}: {fault}", errors=errors)]
        if case.reference is not None and name not in errors:
            reason = "executed, but neither the op nor the reference answers a tensor or a number: give an invariant"
            return [context.not_run(check, case, reason)]
    if case.reference is None and case.invariant is None:
        return [context.not_run(check, case, "executed, but the case gives neither a reference nor an invariant")]
    worst = max(errors.values(), default=0.0)
    figure = f"{len(case.dtypes)} dtype{'s' if len(case.dtypes) > 1 else ''}"
    return [context.passed(check, case, f"{figure}, max error {worst:.2g}" if errors else figure, errors=errors)]


def one_dtype(context: Context, case: Case, dtype: torch.dtype, errors: dict[str, float]) -> str | None:
    """Execute and compare in one dtype; what is wrong, or None. Adds the largest error by dtype."""
    args = context.arguments(case, dtype, grad=False)
    fenced = Canaries(args, mutable(context, case))
    result = context.call(case, fenced.args)
    if context.device == "cuda":
        torch.cuda.synchronize()
    fault = fenced.fault()
    if fault:
        return fault
    if case.invariant is not None:
        return _invariant(case.invariant, result, args)
    if case.reference is None:
        return None
    expected = context.expected(case, context.arguments(case, dtype, grad=False))
    if flatten(result) or flatten(expected):  # an op that writes to its arguments may answer nothing
        errors[str(dtype).replace("torch.", "")] = largest_error(result, expected)
    return compare(result, expected, case, dtype)


def _invariant(invariant: Callable[..., None], result: Any, args: Sequence[Any]) -> str | None:  # noqa: ANN401
    try:
        invariant(result, *args)
    except AssertionError as error:
        return f"the invariant does not hold: {' '.join(str(error).split()) or 'a bare assert in cases.py'}"
    return None
