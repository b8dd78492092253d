"""One op call, for a process that has imported everything and wants to know whether it lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from builder.gate import discover
from builder.gate.context import Context
from builder.gate.outcome import Spec


def call_first(root: str, doing: Callable[[str], object]) -> str:
    """Call the op of the first case whose op is there and has a kernel for the CPU; its name, or nothing.

    An exception of the op is no concern of an import order: the next case is tried.
    """
    if not Path(root, "cases.py").is_file():
        return ""
    cases, _, _ = discover.load_cases(Path(root))
    context = Context(Spec("", []), cases)
    torch.set_num_threads(1)
    for case in cases:
        if case.edge or "cpu" not in case.devices:
            continue
        try:
            args = context.arguments(case, device="cpu", grad=False)
            context.function(case)
            doing(case.op)
            context.call(case, args)
        except Exception:  # noqa: BLE001, S112 (CaseError among them; the other checks tell)
            continue
        return case.op
    return ""
