"""Which tasks a run of the gate has: a table of checks, laid over the cases. Plain data; torch is not imported.

One task is one check of one case in a process of its own: forking is cheap beside torch's start-up, which is paid once,
and a crash then has one op, one case and one check to its name. The dtypes of a case share a process; the journal says
which of them was at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.gate.outcome import CHECKS, NOT_RUN, Outcome, Spec


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Attributes:
        name: a key of CHECKS.
        function: `module:function` in this package, `(context, case) -> list of outcomes`; for `whole`, `(context)`.
        device: "cpu": runs on the CPU (on CUDA for an op that has no other kernel); "cuda": needs a GPU;
            "none": executes no kernel, so any machine will do.
        guarded: runs under glibc's heap checks.
        edges: "with": edge cases too; "without": they would say nothing; "only": nothing else.
        whole: one task for the extension instead of one for each case.
        patience: its time limit as a multiple of the spec's.

    """

    name: str
    function: str
    device: str = "cpu"
    guarded: bool = False
    edges: str = "with"
    whole: bool = False
    patience: float = 1.0


#: Slow ones first: what takes longest must not be what is waited for last.
TABLE = (
    Check("compile", "traces:compiled", edges="without", patience=2.0),
    Check("export", "traces:export", edges="without", patience=2.0),
    Check("opcheck", "traces:opcheck", patience=2.0),
    Check("memory", "memory:memory", guarded=True),
    Check("dispatch", "dispatch:dispatch", device="none", whole=True),
    Check("gradients", "gradients:gradients"),
    Check("values", "values:values", edges="without"),
    Check("edges", "values:edges", edges="only"),
    Check("layouts", "layouts:layouts", edges="without"),
    Check("repeat", "memory:repeat", edges="without"),
    Check("fake", "fakes:fake"),
    Check("devices", "fakes:devices", device="none", edges="without"),
    Check("gpu-values", "gpu:values", device="cuda"),
    Check("gpu-stream", "gpu:stream", device="cuda", edges="without"),
    Check("gpu-graph", "gpu:graph", device="cuda", edges="without"),
    Check("gpu-device", "gpu:second_device", device="cuda", edges="without"),
    Check("gpu-sanitizer", "gpu:sanitizer", device="cuda", edges="without", patience=4.0),
)


@dataclass(frozen=True)
class CaseFacts:
    """What the conductor, which has no torch, knows of a case: its number in cases.py and the fields below."""

    number: int
    op: str
    name: str
    edge: str = ""
    devices: Sequence[str] = ("cpu", "cuda")
    not_claimed: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""  # why its op cannot be called at all

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseFacts:
        """Read what a nursery tells."""
        return cls(**data)


@dataclass(frozen=True)
class Task:
    """One process to be: a check and the number of the case, None for the whole extension."""

    check: Check
    case: CaseFacts | None
    device: str

    @property
    def op(self) -> str:
        """The op, or nothing for the whole extension."""
        return self.case.op if self.case else ""

    @property
    def name(self) -> str:
        """The case, or nothing for the whole extension."""
        return self.case.name if self.case else ""

    def outcome(self, verdict: str, reason: str, seconds: float = 0.0, **evidence: Any) -> Outcome:  # noqa: ANN401
        """An outcome of this task, for what its process cannot say itself."""
        return Outcome(self.check.name, self.op, self.name, verdict, reason, seconds, dict(evidence))


def plan(
    spec: Spec, cases: Iterable[CaseFacts], no_gpu: str, known: Sequence[str] = tuple(CHECKS)
) -> tuple[list[Task], list[Outcome]]:
    """The tasks, and an outcome for each that cannot be: `no_gpu` says why there is none, or nothing if there is."""
    tasks: list[Task] = []
    outcomes: list[Outcome] = []
    listed = list(cases)
    for check in TABLE:
        if (spec.checks and check.name not in spec.checks) or check.name not in known:
            continue
        if check.whole:
            tasks.append(Task(check, None, "cpu"))
            continue
        for case in listed:
            device = _device(check, case)
            task = Task(check, case, device)
            why = _why_not(check, case, device, no_gpu)
            if why:
                outcomes.append(task.outcome(NOT_RUN, why))
            elif _is_asked(check, case):
                tasks.append(task)
        outcomes += _only_edges(check, listed)
    return tasks, outcomes


def _only_edges(check: Check, cases: Sequence[CaseFacts]) -> list[Outcome]:
    """An op all of whose cases are edge cases would pass unseen where these are not asked."""
    if check.edges != "without":
        return []
    plain = {_bare(case.op) for case in cases if not case.edge}
    bare = dict.fromkeys(case.op for case in cases if _bare(case.op) not in plain)
    reason = "the op has edge cases alone: add a case without edge"
    return [Outcome(check.name, op, "", NOT_RUN, reason) for op in bare]


def _bare(op: str) -> str:
    """`ns::op` and `ns::op.default` are one."""
    return op[: -len(".default")] if "::" in op and op.endswith(".default") else op


def _is_asked(check: Check, case: CaseFacts) -> bool:
    """Whether this check is put to this case at all; one for the CPU alone is nothing to a GPU."""
    if check.device == "cuda" and "cuda" not in case.devices:
        return False
    return check.edges == "with" or (check.edges == "only") == bool(case.edge)


def _device(check: Check, case: CaseFacts) -> str:
    if check.device == "cpu" and "cpu" not in case.devices and not check.guarded:
        return "cuda"
    return "cuda" if check.device == "cuda" else "cpu"


def _why_not(check: Check, case: CaseFacts, device: str, no_gpu: str) -> str:
    """Why this cannot be run, or nothing."""
    if not _is_asked(check, case):
        return ""  # no such task, and nobody misses it
    if case.missing:
        return case.missing
    if check.name in case.not_claimed:
        return f"not claimed: {case.not_claimed[check.name]}"
    if check.device == "none":
        return ""
    if device not in case.devices and check.device == "cpu":
        return f"the case says the op has no {device.upper()} kernel"
    if device == "cuda" and no_gpu:
        return no_gpu
    return ""
