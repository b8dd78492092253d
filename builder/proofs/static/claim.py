"""What buildfarm claims about a wheel, and how a check of the file becomes a proof."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builder.gate.amounts import join_names
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Torch
from builder.proof import Check, Proof, Verdict, now
from builder.records import CudaSources
from builder.wheelfile.facts import WheelFacts


@dataclass(frozen=True)
class WheelClaim:
    """What buildfarm claims about a wheel; the static checks compare the file with it."""

    #: The ABI class: what the binary is tied to.
    abi: AbiClass
    torch: Torch
    cuda: Cuda
    #: The GPU architectures for which the wheel must hold code.
    archs: tuple[Arch, ...]
    #: The wheel must hold GPU code; False for an extension that may be CPU only.
    cuda_required: bool
    #: Local part that its version must have, e.g. `cu13`; empty when there is no claim.
    local: str
    #: PEP 508 requirements that METADATA must have, e.g. ("torch>=2.10",). METADATA must not admit more releases.
    requires: tuple[str, ...]
    cells: tuple[Cell, ...]
    #: The CUDA files of the source; None for a wheel that buildfarm did not build.
    cuda_sources: CudaSources | None = None
    #: Bytes that the wheel file may have; 0: any number.
    max_size: int = 0
    #: The record of the wheel says that its recipe has `cuda: optional`.
    cuda_optional: bool = False
    #: Others built the wheel; only what surely breaks it is a failure.
    foreign: bool = False
    #: A library links torch, or METADATA requires it; a dependency without torch may need more of its system.
    uses_torch: bool = True
    #: Paths of libraries without which the package works.
    spare: frozenset[str] = frozenset()


def make_proof(
    facts: WheelFacts,
    check: Check,
    errors: Sequence[str],
    *,
    cell: Cell | None = None,
    good: str = "",
    evidence: dict[str, Any] | None = None,
    remarks: Sequence[str] = (),
) -> Proof:
    """A proof that failed with these errors, or passed with the short text `good`; remarks change no verdict."""
    verdict, reason = (Verdict.FAILED, "; ".join(errors)) if errors else (Verdict.PASSED, good)
    evidence = (evidence or {}) | ({"remarks": list(remarks)} if remarks else {})
    return Proof(facts.sha256, cell, check, verdict, reason, evidence, now())


def not_run(facts: WheelFacts, check: Check, reason: str, *, cell: Cell | None = None) -> Proof:
    """A proof that is not run, with the reason. It never counts as passed."""
    return Proof(facts.sha256, cell, check, Verdict.NOT_RUN, reason, {}, now())


def why_no_cuda(sources: CudaSources | None) -> str:
    """Probable cause and cure of a CUDA extension without GPU code."""
    if sources is None:
        return (
            "setup.py probably called torch.cuda.is_available() on a machine without a GPU; "
            "build with FORCE_CUDA=1, or set `assume_cuda: true` in the recipe"
        )
    causes = []
    if sources.never_compiled:
        causes.append(forgotten(sources))
        if not sources.asks_for_gpu:
            causes.append("if the library compiles CUDA code at run time (NVRTC), set `cuda: optional` in the recipe")
    if sources.asks_for_gpu:
        causes.append(
            f"{sources.asks_for_gpu} calls torch.cuda.is_available(), which is False during a build without a GPU: set "
            "`assume_cuda: true` in the recipe"
        )
    if not sources.files:
        causes.append(
            "the source has no .cu file; if the extension needs no GPU code, set `cuda: optional` in the recipe"
        )
    return "; ".join(causes) or "every .cu file of the source was compiled, so check how setup.py links the library"


def forgotten(sources: CudaSources | None) -> str:
    """A question about the CUDA files that were never compiled; empty when there is none."""
    if sources is None or not (names := sources.never_compiled):
        return ""
    verb, pronoun = ("was", "is it") if len(names) == 1 else ("were", "are they")
    return f"{join_names(names)} {verb} never compiled ({pronoun} in `sources` of setup.py?)"
