"""A proof: one check of one wheel in one cell, its verdict, and the evidence. "Not run" is never "passed"."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from builder.matrix.axes import Cell


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


class Check(StrEnum):
    """The checks there are, in the order they are shown."""

    PAYLOAD = "payload"  # a CUDA extension holds a library at all
    TAGS = "tags"  # file name, WHEEL and the audited platform agree
    METADATA = "metadata"  # local version and Requires-Dist tell the truth
    GRAFTED = "grafted"  # no torch, CUDA or driver library inside
    ABI3 = "abi3"  # an abi3 tag is kept by the binary
    STABLE = "stable-abi"  # only the C shims of torch are used
    LINKAGE = "linkage"  # every undefined symbol is found in this cell's torch
    DEVICE_CODE = "device-code"  # SASS or PTX for each claimed arch
    IMPORT = "import"  # installs and imports in the cell's environment
    # The op gate's, in a cell's environment; `builder.gate.outcome.CHECKS` says what each means.
    OPS = "ops"
    DISPATCH = "dispatch"
    IMPORT_ORDER = "import-order"
    VALUES = "values"
    GRADIENTS = "gradients"
    LAYOUTS = "layouts"
    EDGES = "edges"
    REPEAT = "repeat"
    MEMORY = "memory"
    OPCHECK = "opcheck"
    FAKE = "fake"
    DEVICES = "devices"
    EXPORT = "export"
    COMPILE = "compile"
    # The op gate's, on a GPU.
    GPU_VALUES = "gpu-values"
    GPU_STREAM = "gpu-stream"
    GPU_GRAPH = "gpu-graph"
    GPU_DEVICE = "gpu-device"
    GPU_SANITIZER = "gpu-sanitizer"

    @property
    def on_gpu(self) -> bool:
        """Whether it needs a GPU."""
        return self.value.startswith("gpu-")


@dataclass(frozen=True)
class Proof:
    """One verdict.

    Attributes:
        wheel: sha256 of the wheel file, hex.
        cell: where it holds, or None for what the file alone decides.
        check: which check.
        verdict: passed, failed or not run.
        reason: for failed and not run a sentence with what to do; for passed a short figure or empty.
        evidence: data a program can use (symbols, archs, files, versions, where it ran).
        when: UTC time, ISO 8601, seconds.
        basis: what the verdict rests on beside the wheel: claims, imports, the checks' own code; another basis is
            another question.

    """

    wheel: str
    cell: Cell | None
    check: Check
    verdict: Verdict
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    when: str = ""
    basis: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data for the store and for `--json`."""
        return {
            "wheel": self.wheel,
            "cell": str(self.cell) if self.cell else None,
            "check": str(self.check),
            "verdict": str(self.verdict),
            "reason": self.reason,
            "evidence": self.evidence,
            "when": self.when,
            "basis": self.basis,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raises KeyError or ValueError on anything else."""
        return cls(
            wheel=data["wheel"],
            cell=Cell.parse(data["cell"]) if data["cell"] else None,
            check=Check(data["check"]),
            verdict=Verdict(data["verdict"]),
            reason=data["reason"],
            evidence=data["evidence"],
            when=data["when"],
            basis=data["basis"],
        )
