"""Reads a recipe's cases.py: CASES, PUBLIC and NOT_CLAIMED."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from builder.gate.case import Case
from builder.gate.context import CaseError, Context, resolve, sentence
from builder.gate.coverage import CaseFacts, may_take_tensor
from builder.gate.discover import one_line
from builder.gate.imports.cases_fault import is_mistake, line_of
from builder.gate.imports.registration import schema_line
from builder.gate.outcome import Spec


@dataclass(frozen=True)
class CasesFile:
    """The content of a cases.py."""

    cases: Sequence[Case] = ()
    #: PUBLIC, modules whose public functions need a case.
    public: Sequence[str] = ()
    #: NOT_CLAIMED, ops without a case and the reason for each.
    not_claimed: Mapping[str, str] = field(default_factory=dict)
    #: What is wrong with the file, as a sentence, or "".
    problem: str = ""
    #: Whether the problem is a mistake in the file; the extension has no part in it.
    mistake: bool = False


def load_cases(root: Path) -> CasesFile:
    """Import cases.py from the folder of the gate."""
    if not (root / "cases.py").is_file():
        return _unusable("cases.py is missing: write a cases.py that defines CASES, a list of builder.gate.Case")
    try:
        module = importlib.import_module("cases")
    except BaseException as error:  # noqa: BLE001 (SystemExit is an error too)
        line = "" if isinstance(error, SyntaxError) else line_of(error, root)
        mistake = is_mistake(error, root)
        lacking = mistake and isinstance(error, ModuleNotFoundError)
        cure = ": add the package of this module to `companions` in the recipe" if lacking else ""
        return CasesFile(problem=f"cases.py cannot be imported: {one_line(error)}{line}{cure}", mistake=mistake)
    for name, kind in (("CASES", list), ("PUBLIC", list), ("NOT_CLAIMED", dict)):
        value: Any = getattr(module, name, kind())
        if not isinstance(value, (kind, tuple) if kind is list else kind):
            return _unusable(f"{name} in cases.py must be a {kind.__name__}, not a {type(value).__name__}")
    cases = tuple(getattr(module, "CASES", ()))
    public = tuple(getattr(module, "PUBLIC", ()))
    not_claimed = dict(getattr(module, "NOT_CLAIMED", {}))
    problem = ""
    if not cases and not not_claimed:
        problem = "cases.py has no cases: it must define CASES, a list of builder.gate.Case"
    for op, reason in reversed(not_claimed.items()):
        if not isinstance(op, str) or not isinstance(reason, str) or not reason.strip():
            problem = f"NOT_CLAIMED in cases.py gives no reason for {op}: write why the op has no case"
    if wrong := [one for one in cases if not isinstance(one, Case)]:
        what = f"contains a {type(wrong[0]).__name__}: every item must be a builder.gate.Case"
        problem = f"CASES in cases.py {what}"
    return CasesFile(cases, public, not_claimed, problem, mistake=bool(problem))


def _unusable(problem: str) -> CasesFile:
    return CasesFile(problem=problem, mistake=True)


def case_facts(number: int, case: Case, imported: bool, on_cpu: Collection[str]) -> dict[str, Any]:
    """Return the fields of `coverage.CaseFacts` for a case.

    `on_cpu` names the ops that have a CPU kernel although every case excludes the CPU.
    """
    missing, unknown, tensor = "the extension does not import", False, True
    if imported:
        try:
            tensor = may_take_tensor(resolve(case.op))
            missing = ""
        except CaseError as error:
            missing = str(error)
            if "::" in case.op:
                cure = f"add {schema_line(case.op)}, or correct the name in cases.py"
                missing = f"{case.op}: no op of this name is registered: {cure}"
            # Any other ImportError may be that of a library of the extension.
            unknown = error.__cause__ is None or isinstance(error.__cause__, AttributeError)
        except Exception as error:  # noqa: BLE001 (a lazy module may run any code here)
            missing = f"looking up {case.op} raises {sentence(error)}"
    said = (number, case.op, case.name, case.edge, list(case.devices), dict(case.not_claimed))
    return vars(CaseFacts(*said, missing, unknown, case.op in on_cpu, case.side_effects, tensor))


def call_first(root: str, step: Callable[[str], object]) -> str:
    """Call the op of the first case that works on the CPU; return the name of the op, or "".

    The check "import-order" uses this to test that an op runs. If an op raises, the next case is tried: other checks
    report the exception. `step` is called with the name of the op before each call.
    """
    if not Path(root, "cases.py").is_file():
        return ""
    cases = load_cases(Path(root)).cases
    context = Context(Spec("", []), cases)
    torch.set_num_threads(1)
    for case in cases:
        if case.edge or "cpu" not in case.devices:
            continue
        try:
            args = context.arguments(case, device="cpu", grad=False)
            resolve(case.op)
            step(case.op)
            context.call(case, args)
        except Exception:  # noqa: BLE001, S112 (CaseError among them; other checks report it)
            continue
        return case.op
    return ""
