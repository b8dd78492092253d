"""What the farm says of a wheel, and how a verdict on it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Torch
from builder.proof import Check, Proof, Verdict
from builder.wheels.facts import WheelFacts


@dataclass(frozen=True)
class Claim:
    """What a wheel is said to be; each proof holds the file against it.

    Attributes:
        abi: what the binary is tied to.
        torch: the oldest torch it claims.
        cuda: the toolkit it was built with.
        archs: the GPU architectures whose code it must hold.
        cuda_required: it must hold GPU code; False for an extension that may be CPU only.
        local: the local version its version must carry, e.g. `cu13`, or empty when nothing is said.
        requires: PEP 508 requirements its METADATA must carry, e.g. ("torch>=2.10",): none may be missing,
            and what METADATA admits may not be wider.
        cells: where it is said to work.

    """

    abi: AbiClass
    torch: Torch
    cuda: Cuda
    archs: tuple[Arch, ...]
    cuda_required: bool
    local: str
    requires: tuple[str, ...]
    cells: tuple[Cell, ...]


def judge(
    facts: WheelFacts,
    check: Check,
    faults: Sequence[str],
    *,
    cell: Cell | None = None,
    good: str = "",
    evidence: dict[str, Any] | None = None,
) -> Proof:
    """A proof that failed with these sentences, or passed with the figure `good` when there are none."""
    return Proof(
        wheel=facts.sha256,
        cell=cell,
        check=check,
        verdict=Verdict.FAILED if faults else Verdict.PASSED,
        reason="; ".join(faults) if faults else good,
        evidence=evidence or {},
        when=now(),
    )


def not_run(facts: WheelFacts, check: Check, reason: str, *, cell: Cell | None = None) -> Proof:
    """A proof that could not be made, and why: never taken for a passed one."""
    return Proof(facts.sha256, cell, check, Verdict.NOT_RUN, reason, {}, now())


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names for a sentence: the first few, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
