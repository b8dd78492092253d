"""The input and the output of the gate as plain JSON data: `Spec`, `Outcome`, `Accept`, `Answer`. Needs no torch."""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

from builder.gate.amounts import counted

PASSED, FAILED, NOT_RUN, ACCEPTED, REMARK = "passed", "failed", "not run", "accepted", "remark"
VERDICTS = (PASSED, FAILED, NOT_RUN, ACCEPTED)

#: Exit statuses of the gate; 128 + signal number if interrupted.
NOTHING_FAILED, SOMETHING_FAILED = 0, 1
#: Seconds that importing torch and the extension may take, from a cold disk.
IMPORT_SECONDS = 180.0
#: The file beside spec.json from which the gate reads the key for its answer. It deletes the file at once.
KEY_FILE = "key"
#: In the evidence of a failure: cases.py is wrong, whatever the wheel does.
MISTAKE_IN_CASES: Mapping[str, Any] = MappingProxyType({"mistake": "cases.py"})

#: In the evidence of "gradients", by the key "gradient": the gradient is right; backward raises; there is none; it is
#: right on the CPU, and was not compared on CUDA.
CHECKED, REFUSED, LOST, RECORDED = "checked", "refused", "lost", "recorded"


@dataclass(frozen=True)
class Spec:
    """The input of one run of the gate."""

    #: The name of the extension, for titles.
    name: str
    #: Modules to import; the gate tests the ops that these imports register.
    imports: list[str]
    #: Names of distributions that the check "import-order" imports before and after the extension.
    companions: list[str] = field(default_factory=list)
    #: Stem of a library file to the dispatch keys it registers: {"_C": ["CPU"], "_C_cuda": ["CUDA"]}.
    libraries: dict[str, list[str]] = field(default_factory=dict)
    has_cases: bool = True
    #: Number of tasks that run in parallel; 0 for the number of CPU cores.
    jobs: int = 2
    #: Time limit of one task, in seconds.
    seconds: float = 60.0
    #: Bytes that one task may allocate in addition to the memory used by the imports.
    memory: int = 4 << 30
    #: Names of checks to run; empty for all.
    checks: list[str] = field(default_factory=list)
    #: Modules that every process imports before those of `imports`.
    needs_first: list[str] = field(default_factory=list)
    #: Entries of `acceptance.Accept` as JSON data.
    accepts: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path) -> Spec:
        """Read the spec.json of a packed gate. Raises OSError, ValueError or TypeError."""
        return cls(**json.loads((root / "spec.json").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Outcome:
    """The result of one check for one case."""

    #: A name in `builder.gate.check_table.CHECKS`.
    check: str
    #: `namespace::name`, the dotted path of a callable, or "" if the outcome is about the extension.
    op: str
    case: str
    verdict: str
    #: One sentence if failed or not run; a short figure or "" if passed.
    reason: str = ""
    #: Wall time in seconds.
    seconds: float = 0.0
    #: Details as JSON data (output, stack, shapes, devices).
    evidence: dict[str, Any] = field(default_factory=dict)
    #: Whether a "not run" shows a gap of the tests that the author of the recipe can close.
    remark: bool = False
    #: Why the recipe accepts this finding; "" if it does not.
    accepted: str = ""

    @property
    def bare_reason(self) -> str:
        """The reason without a leading op and case."""
        return self.reason.removeprefix(f"{self.op} ({self.case}): ").removeprefix(f"{self.op}: ")

    @property
    def cause(self) -> str:
        """The reason without op, case and step, which differ between outcomes that have the same cause."""
        return self.bare_reason.partition(" (step: ")[0]


@dataclass(frozen=True)
class Answer:
    """The output of one run of the gate."""

    #: Versions of torch, cuda, python and glibc, the machine, and for each GPU its name, sm and driver.
    where: dict[str, Any]
    #: The ops discovered, `namespace::name.overload` and dotted paths.
    ops: list[str]
    #: One for each check and case, in the order of CHECKS.
    outcomes: list[Outcome]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """Read its JSON; raises KeyError or TypeError for anything else."""
        return cls(dict(data["where"]), list(data["ops"]), [Outcome(**one) for one in data["outcomes"]])


def signature(key: bytes, answer: Mapping[str, Any]) -> str:
    """Return the code that shows that whoever wrote this answer as JSON data knows the key."""
    text = json.dumps({name: answer[name] for name in sorted(answer) if name != "signature"}, sort_keys=True)
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def verdict_of(outcomes: Sequence[Outcome]) -> str:
    """The verdict of a check from its outcomes: a failed one decides, then an accepted one, then one that did not run.

    A check without an outcome did not run.
    """
    verdicts = {one.verdict for one in outcomes} or {NOT_RUN}
    return next(verdict for verdict in (FAILED, ACCEPTED, NOT_RUN, PASSED) if verdict in verdicts)


def count_text(verdicts: Iterable[str]) -> str:
    """How many checks have which verdict: `20 passed, 1 failed, 5 not run, 1 accepted, 1 remark`.

    REMARK stands for a check that did not run and shows a gap of the tests.
    """
    found = Counter(verdicts)
    shown = [f"{found[verdict]} {verdict}" for verdict in (PASSED, FAILED, NOT_RUN)]
    shown += [f"{found[ACCEPTED]} {ACCEPTED}"] if found[ACCEPTED] else []
    shown += [counted(found[REMARK], "remark")] if found[REMARK] else []
    return ", ".join(shown)


def without_overload(op: str) -> str:
    """`ns::op` of `ns::op.overload`; a dotted path unchanged."""
    return op.partition(".")[0] if "::" in op else op


@dataclass(frozen=True)
class Accept:
    """One entry of `accepts` in a recipe. A finding is accepted if every key that the entry gives matches it."""

    check: str
    reason: str
    #: An op, with or without its overload; for the check "loaded" the path of a library; empty: every op.
    op: str = ""
    #: Pattern of cell names; empty: every cell.
    cell: str = ""

    def matches(self, one: Outcome, cell: str) -> bool:
        """Whether the entry is about this outcome of this cell, or of the wheel file if `cell` is empty."""
        names = (one.op, without_overload(one.op)) if one.op else (one.case,)
        in_cell = not self.cell or fnmatchcase(cell, self.cell)
        return self.check == one.check and in_cell and (not self.op or self.op in names)


def accept(outcomes: Sequence[Outcome], entries: Sequence[Accept], cell: str) -> list[Outcome]:
    """Return the outcomes with each accepted finding marked. A finding is a failed outcome or a remark."""
    judged = []
    for one in map(finding, outcomes):
        reasons = [entry.reason for entry in entries if entry.matches(one, cell)]
        if reasons and (one.verdict == FAILED or one.remark):
            one = replace(one, verdict=ACCEPTED, accepted=reasons[0])  # noqa: PLW2901
        judged.append(one)
    return judged


def finding(one: Outcome) -> Outcome:
    """Return the outcome as it was before it was accepted."""
    return replace(one, verdict=NOT_RUN if one.remark else FAILED, accepted="") if one.verdict == ACCEPTED else one


def cell_name(where: dict[str, Any]) -> str:
    """Return the name of the cell that the gate runs in, such as torch2.11.0-cu130-cp312."""
    torch = str(where.get("torch") or "").partition("+")[0]
    cuda = str(where.get("cuda") or "").replace(".", "")
    python = "".join(str(where.get("python") or "").split(".")[:2])
    return f"torch{torch}-cu{cuda}-cp{python}"
