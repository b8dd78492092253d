"""The checks "values" and "edges": every dtype against the reference or invariant, and the inputs stay unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from builder.gate.case import Case
from builder.gate.checks.guard_pages import Canaries, mutable
from builder.gate.context import Context, compare, flatten, largest_error
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
    """Run and compare in one dtype; return what is wrong or None. Adds the largest error to `errors`."""
    args = context.arguments(case, dtype, grad=False)
    canaries = Canaries(args, mutable(context, case))
    result = context.call(case, canaries.args)
    if context.device == "cuda":
        torch.cuda.synchronize()
    failure = canaries.failure()
    if failure:
        return failure
    if case.invariant is not None:
        return _invariant(case.invariant, result, args)
    if case.reference is None:
        return None
    expected = context.expected(case, context.arguments(case, dtype, grad=False))
    if flatten(result) or flatten(expected):  # an op that writes to its arguments may return nothing
        errors[str(dtype).replace("torch.", "")] = largest_error(result, expected)
    return compare(result, expected, case, dtype)


def _invariant(invariant: Callable[..., None], result: Any, args: Sequence[Any]) -> str | None:  # noqa: ANN401
    try:
        invariant(result, *args)
    except AssertionError as error:
        return f"the invariant does not hold: {' '.join(str(error).split()) or 'its assert in cases.py has no message'}"
    return None
