"""GPU code against the claim: machine code for every architecture claimed, and PTX where `+PTX` is claimed.

The rule is stricter than what may run. Machine code for 8.0 also runs on 8.6, and PTX is compiled by a driver
that is new enough; but a claim of `8.6` says that the wheel was compiled for it, so `sm_86` must be there.
Code for `sm_90a` serves a claim of 9.0, because every GPU of 9.0 runs it; a claim of 9.0a is served by
`sm_90a` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.matrix.axes import Arch
from builder.proof import Check, Proof
from builder.proofs.claim import Claim, judge, listed
from builder.wheels.facts import Library, WheelFacts


def check_device_code(facts: WheelFacts, claim: Claim, *, gpus: Mapping[str, Sequence[str]] | None = None) -> Proof:
    """Each library of the wheel's own with GPU code holds it for every claimed architecture.

    `gpus` names the GPUs of an architecture for the sentence, e.g. {"9.0": ["H100", "H200"]}.
    """
    coded = [library for library in facts.libraries if library.fatbin and not library.foreign]
    faults = []
    if not coded and claim.cuda_required:
        faults.append("no library holds GPU code, so every GPU says 'no kernel image is available'")
    for library in coded:
        if missing := [arch for arch in claim.archs if not _has_sass(library, arch)]:
            faults.append(_no_code(library, missing, gpus or {}))
        if no_ptx := [f"compute_{a.number}{a.suffix}" for a in claim.archs if a.ptx and not _has_ptx(library, a)]:
            faults.append(f"{library.path} lacks the PTX {listed(no_ptx)}, so no GPU newer than its code runs it")
    evidence = {
        "claimed": [str(arch) for arch in claim.archs],
        "libraries": {library.path: {"sass": list(library.sass), "ptx": list(library.ptx)} for library in coded},
    }
    every = sorted({code for library in coded for code in (*library.sass, *library.ptx)}, key=_order)
    return judge(facts, Check.DEVICE_CODE, faults, good=" ".join(every) or "none, and none claimed", evidence=evidence)


def _has_sass(library: Library, arch: Arch) -> bool:
    if arch.suffix:
        return arch.sm in library.sass
    return not {f"sm_{arch.number}{suffix}" for suffix in ("", "a", "f")}.isdisjoint(library.sass)


def _has_ptx(library: Library, arch: Arch) -> bool:
    return f"compute_{arch.number}{arch.suffix}" in library.ptx


def _no_code(library: Library, missing: Sequence[Arch], gpus: Mapping[str, Sequence[str]]) -> str:
    hit = [gpu for arch in missing for gpu in gpus.get(f"{arch.major}.{arch.minor}", ())]
    who = f" ({listed(hit)})" if hit else ""
    names = listed([arch.sm for arch in missing], most=8)
    have = ", ".join(library.sass) or "none"
    return (
        f"{library.path} has no machine code for {names}{who}, where it fails with 'no kernel image is "
        f"available'; it has {have}: build with TORCH_CUDA_ARCH_LIST, and look for -gencode flags in setup.py"
    )


def _order(code: str) -> tuple[int, str]:
    prefix, _, number = code.partition("_")
    return int(number.rstrip("af")), prefix
