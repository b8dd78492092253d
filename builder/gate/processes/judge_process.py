"""The judge: a fork server that never imports the extension. It gets the results of ops as data and compares them."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import torch

from builder.gate.case import Case
from builder.gate.checks.outputs import UnreadableError, read_results
from builder.gate.checks.values import check_each_dtype, judge_result
from builder.gate.context import Context, dtype_name
from builder.gate.imports.cases_file import load_cases
from builder.gate.imports.packages import NeedsExtensionError, needs_extension
from builder.gate.outcome import Outcome, Spec
from builder.gate.processes import worker
from builder.gate.processes.fork_server import serve
from builder.gate.processes.jobs import INSIDE


def main(root: str, spec: Spec, commands: int, events: int) -> None:
    """Read cases.py, send "ready", serve. The starter has imported torch and hidden its memory. Does not return."""
    # The extension may register an op that is missing here.
    namespace = torch._ops._OpNamespace
    found = namespace.__getattr__

    def look_up(self: Any, name: str) -> Any:  # noqa: ANN401
        try:
            return found(self, name)
        except AttributeError as error:
            raise NeedsExtensionError(str(error)) from error

    namespace.__getattr__ = look_up
    file = load_cases(Path(root))
    gc.enable()
    cases = [[case.op, case.name, case.edge, list(case.devices), dict(case.not_claimed)] for case in file.cases]
    context = Context(spec, file.cases)
    serve(commands, events, partial(worker.run_child, context), {"cases": cases, "problem": file.problem})


def values(context: Context, case: Case) -> list[Outcome] | dict[str, Any]:
    """Judge "values" or "edges"; the fact INSIDE stands for a case that needs the extension or has side effects."""
    if case.side_effects:
        return {INSIDE: True}
    try:
        sent = read_results(context.data, context.spec.memory)
    except UnreadableError as error:
        return context.failed(case, str(error))

    def one_dtype(context: Context, case: Case, dtype: torch.dtype, errors: dict[str, float]) -> str | None:
        result = sent.get(dtype_name(dtype))
        if result is None:
            return "the result did not arrive at the judge"
        return judge_result(context, case, dtype, result, errors)

    try:
        return check_each_dtype(context, case, one_dtype)
    except Exception as error:
        if needs_extension(error):
            return {INSIDE: True}
        raise
