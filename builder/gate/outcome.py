"""What the gate is asked and what it answers: plain data that travels as JSON. Standard library only, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

#: The checks of the gate in the order they are shown, and what each says when it passes.
CHECKS: Mapping[str, str] = {
    "ops": "every op the import registered has a case",
    "dispatch": "the dispatch keys claimed have kernels",
    "import-order": "every order of torch, the extension and its companions imports and runs an op",
    "values": "results agree with the reference, in every dtype claimed",
    "gradients": "gradients agree with the reference and with finite differences",
    "layouts": "non-contiguous inputs and gradients give the same results",
    "edges": "empty and single-element batches are answered",
    "repeat": "two runs give the same bits",
    "memory": "nothing is written past an end, nothing uninitialised is read",
    "opcheck": "torch.library.opcheck",
    "fake": "the fake kernel agrees with the real one in shape, dtype, strides and device",
    "devices": "tensors on two devices are refused under FakeTensor as they are for real",
    "export": "torch.export, with dynamic shapes",
    "compile": "torch.compile(fullgraph=True), static and dynamic",
    "gpu-values": "CUDA agrees with the CPU",
    "gpu-stream": "the current stream is used",
    "gpu-graph": "CUDA graphs capture and replay it",
    "gpu-device": "a second GPU works while the first is current",
    "gpu-sanitizer": "compute-sanitizer finds nothing",
}


@dataclass(frozen=True)
class Spec:
    """What the gate is to prove.

    Attributes:
        name: the extension, for titles.
        imports: modules to import; the ops they register are the ops under test.
        companions: distribution names whose import order is tested.
        libraries: library file stem to the dispatch keys it must register, {"_C": ["CPU"], "_C_cuda": ["CUDA"]}.
        has_cases: whether a cases.py travels along.
        jobs: processes at once; 0 for as many as there are cores.
        seconds: time limit of one case's process.
        memory: bytes one case's process may add to what importing took.
        checks: names of checks to run; empty for all.

    """

    name: str
    imports: list[str]
    companions: list[str] = field(default_factory=list)
    libraries: dict[str, list[str]] = field(default_factory=dict)
    has_cases: bool = True
    jobs: int = 2
    seconds: float = 60.0
    memory: int = 4 << 30
    checks: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """One check of one op in one case.

    Attributes:
        check: a key of CHECKS.
        op: `namespace::name`, the dotted path of a callable, or "" for what concerns the whole extension.
        case: the case's name, or "".
        verdict: PASSED, FAILED or NOT_RUN.
        reason: for failed and not run one sentence; for passed a short figure or nothing.
        seconds: wall time.
        evidence: data for programs and for a person who wants to know more (stderr, stack, shapes, devices).

    """

    check: str
    op: str
    case: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Everything one run of the gate found.

    Attributes:
        where: torch, cuda, python, glibc, machine, and for each GPU its name, sm, driver, clock.
        ops: the ops discovered, `namespace::name.overload` and dotted paths.
        outcomes: every check of every case, in the order of CHECKS.

    """

    where: dict[str, Any]
    ops: list[str]
    outcomes: list[Outcome]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """Read what `to_json` wrote; raises KeyError or TypeError on anything else."""
        return cls(dict(data["where"]), list(data["ops"]), [Outcome(**one) for one in data["outcomes"]])
