"""The judge's part of the checks "values" and "edges": reads the results and compares them with the reference."""

from __future__ import annotations

from typing import Any

import torch

from builder.gate.case import Case
from builder.gate.checks.values import check_each_dtype, judge_result
from builder.gate.context import Context, dtype_name
from builder.gate.imports.packages import NeedsExtensionError, needs_extension
from builder.gate.outcome import Outcome
from builder.gate.transport import results

#: The fact that a task of the judge records if the case must be judged in the process of the extension.
INSIDE = "inside"


def values(context: Context, case: Case) -> list[Outcome] | dict[str, Any]:
    """Judge "values" or "edges"; returns the fact INSIDE for a case that needs the extension or has side effects."""
    if case.side_effects:
        return {INSIDE: True}
    try:
        sent = results.read(context.data, context.spec.memory)
    except results.UnreadableError as error:
        return context.failed(case, str(error))

    def one_dtype(context: Context, case: Case, dtype: torch.dtype, errors: dict[str, float]) -> str | None:
        result = sent.get(dtype_name(dtype))
        if result is None:
            return "the result did not arrive at the judge"
        return judge_result(context, case, dtype, result.value, result.written, errors)

    try:
        return check_each_dtype(context, case, one_dtype)
    except Exception as error:
        if needs_extension(error):
            return {INSIDE: True}
        raise


def refuse_missing_ops() -> None:
    """Let the lookup of an op that is not registered raise NeedsExtensionError: the extension may register it."""
    namespace = torch._ops._OpNamespace
    found = namespace.__getattr__

    def look_up(self: Any, name: str) -> Any:  # noqa: ANN401
        try:
            return found(self, name)
        except AttributeError as error:
            raise NeedsExtensionError(str(error)) from error

    namespace.__getattr__ = look_up
