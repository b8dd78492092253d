"""Checks that every op has a case and that every case names an op. Plain data; does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from builder.gate.amounts import counted, grouped
from builder.gate.outcome import FAILED, MISTAKE_IN_CASES, NOT_RUN, PASSED, Outcome, without_overload

_NO_CASE = (
    "no case covers this op: `buildfarm cases` drafts a Case for cases.py;"
    " or list the op in NOT_CLAIMED with the reason"
)
_UNKNOWN = "NOT_CLAIMED in cases.py names this op, but the extension has no such op: remove the entry"

_PLAIN_TYPE = r"(?:(?:typing\.)?Supports\w+|int|float|bool|str|None)"
#: Types of numbers and texts, as pybind11 and nanobind write them in the first line of a docstring.
PLAIN_TYPES = rf"{_PLAIN_TYPE}(?: \| {_PLAIN_TYPE})*"
#: `f(arg0: int, arg1: float = 1.0)`, without tensors among the parameters.
PLAIN_CALL = rf"\w+\((?:\w+: {PLAIN_TYPES}(?: = [^,()]*)?(?:, )?)*\)"


@dataclass(frozen=True)
class CaseFacts:
    """What the scheduler, which does not import torch, knows about a case: its index in CASES and these fields.

    `missing` says why the case's op cannot be called; "" if it can. `unknown` is whether the reason is that nothing has
    this name. `cpu_kernel` is whether the op has a CPU kernel, but every case excludes the CPU. `takes_tensor` is False
    if the op is known to take no tensor. The other fields are those of `case.Case`.
    """

    number: int
    op: str
    name: str
    edge: str = ""
    devices: Sequence[str] = ("cpu", "cuda")
    not_claimed: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    unknown: bool = False
    cpu_kernel: bool = False
    side_effects: bool = False
    takes_tensor: bool = True


def no_cases(extension: str) -> str:
    """Return why the checks of a recipe without cases.py are not run; a project can have several recipes."""
    cure = f"`buildfarm cases --ext {extension}` drafts one for its recipe"
    return f"there is no cases.py for {extension}, so no op was called: {cure}"


def case_coverage(
    ops: Sequence[str], cases: Sequence[CaseFacts], not_claimed: Mapping[str, str] = MappingProxyType({})
) -> list[Outcome]:
    """Return an outcome of "ops" for each discovered op, and a failure for each case that cannot be called.

    A case for `ns::op` covers `ns::op` and, if the op has one overload, that overload; a case for `ns::op.overload`
    covers that overload, and `ns::op.default` is `ns::op`. An op in `not_claimed`, the NOT_CLAIMED of cases.py, needs
    no case and is "not run".
    """
    named = [_only_overload(case.op, ops) for case in cases]
    outcomes = []
    for op in ops:
        count = named.count(op)
        reason = not_claimed.get(op) or not_claimed.get(without_overload(op))
        if count:
            outcomes.append(Outcome("ops", op, "", PASSED, counted(count, "case")))
        elif reason:
            outcomes.append(Outcome("ops", op, "", NOT_RUN, f"not claimed: {reason}"))
        else:  # a public module that cannot be imported is no mistake in cases.py
            outcomes.append(_failure(op, "", _NO_CASE, mistake=not op.endswith(".*")))
    known = [*ops, *map(without_overload, ops)]
    outcomes += [_failure(op, "", _UNKNOWN) for op in not_claimed if op not in known]
    for case in _first_case_of_each_op(case for case in cases if case.missing):
        near = get_close_matches(case.op, known, 1) if case.unknown else []
        meant = f"; did you mean {near[0]}?" if near else ""
        reason = f"this case in cases.py cannot be called: {case.missing}{meant}"
        outcomes.append(_failure(case.op, case.name, reason, mistake=case.unknown, unknown=True))
    names = [(case.op, case.name) for case in cases]
    reason = "two cases of this op have the same name: rename one of them"
    outcomes += [_failure(*name, reason) for at, name in enumerate(names) if name in names[:at]]
    return outcomes


def _failure(op: str, case: str, reason: str, *, mistake: bool = True, **evidence: bool) -> Outcome:
    return Outcome("ops", op, case, FAILED, reason, evidence={**(MISTAKE_IN_CASES if mistake else {}), **evidence})


def missing_empty_cases(cases: Sequence[CaseFacts]) -> list[Outcome]:
    """Return a "not run" outcome of "edges" for each op without a case for empty input, unless it takes no tensor."""
    without = {case.op for case in cases if case.edge == "empty" or not case.takes_tensor}
    return [
        Outcome("edges", case.op, "", NOT_RUN, 'no case has edge="empty": add a case with empty input')
        for case in _first_case_of_each_op(case for case in cases if case.op not in without)
    ]


def may_take_tensor(op: Any) -> bool:  # noqa: ANN401
    """Return False if a schema, or the docstring that pybind11 writes, shows that each parameter is a plain value."""
    overloads = getattr(op, "overloads", None)
    if callable(overloads):  # an op of the dispatcher
        arguments = [one.type for name in overloads() for one in getattr(op, name)._schema.arguments]
        return any(re.search("Tensor|__torch__|Any", str(one)) for one in arguments)
    lines = re.findall(r"^(?:\d+\. )?\w+\(.*\) -> .*$", str(getattr(op, "__doc__", None) or ""), re.MULTILINE)
    return not lines or not all(re.fullmatch(rf"(?:\d+\. )?{PLAIN_CALL} -> .*", line) for line in lines)


def _only_overload(op: str, ops: Sequence[str]) -> str:
    if op in ops or "::" not in op:
        return op
    if op.removesuffix(".default") in ops:
        return op.removesuffix(".default")
    overloads = [one for one in ops if one.partition(".")[0] == op]
    return overloads[0] if len(overloads) == 1 else op


def _first_case_of_each_op(cases: Iterable[CaseFacts]) -> list[CaseFacts]:
    return [found[0] for found in grouped((case.op, case) for case in cases).values()]
