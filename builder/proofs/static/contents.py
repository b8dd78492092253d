"""Check what a wheel holds: its library and GPU code, no library of torch, CUDA or the driver, not too many bytes."""

from __future__ import annotations

import re

from builder.gate.system.sizes import size_text
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, join_names, make_proof, why_no_cuda
from builder.wheelfile.driver import is_driver_library
from builder.wheelfile.facts import Library, WheelFacts

#: Libraries that a wheel must never hold, even if the cell's packages are unknown.
_NEVER = re.compile(r"lib(torch(_\w+)?|c10(_\w+)?|cudart|cublas|cublasLt|cudnn(_\w+)?|nvrtc|nvJitLink|nccl)")
#: auditwheel adds a hash to the name of a copied library: `libcudart.so.13` becomes `libcudart-1a2b3c4d.so.13.0.96`.
#: torchvision's own tool writes `libcudart.1a2b3c4d.so.13`.
_GRAFT_HASH = re.compile(r"[-.][0-9a-f]{8,}$")
#: Libraries, and architectures of each, that a failure names.
_MOST = 3


def check_payload(facts: WheelFacts, claim: WheelClaim) -> Proof:
    """The wheel holds at least one library of its own; for a CUDA extension, one of them holds GPU code."""
    errors = []
    own = [library for library in facts.libraries if not library.foreign]
    if not own:
        tags = ", ".join(facts.tags) or "untagged"
        why = why_no_cuda(claim.cuda_sources) if claim.cuda_required else "check `ext_modules` in setup.py"
        errors.append(f"the wheel ({tags}) contains no library: the build compiled no source; {why}")
    elif claim.cuda_required and not any(library.fatbin for library in own):
        names = join_names([library.basename for library in own])
        errors.append(f"no GPU code in {names}: {why_no_cuda(claim.cuda_sources)}")
    evidence = {library.path: {"gpu_code": library.fatbin} for library in own}
    count = len(own)
    return make_proof(
        facts,
        Check.PAYLOAD,
        errors,
        good=f"{count} {'library' if count == 1 else 'libraries'}",
        evidence={"libraries": evidence},
    )


def check_grafted(facts: WheelFacts, provided: frozenset[str]) -> Proof:
    """The wheel holds no library that the cell's torch, its NVIDIA packages or the driver provide.

    `provided` holds file names such as `libtorch_cpu.so` and `libcudart.so.13`. A copy is recognised by its file name
    or soname, also with the hash that auditwheel adds. Two copies in one process have two separate states of CUDA.
    """
    # Compare names with their hash: a torch with `libgomp-a34b3233.so.1` does not provide `libgomp.so.1`.
    theirs = {name.partition(".so")[0] for name in provided}
    grafted = [
        library.path
        for library in facts.libraries
        if any(_is_theirs(name, theirs) for name in (library.basename, library.soname) if name)
    ]
    errors = (
        [
            f"the wheel contains {join_names(grafted)}, which torch, its NVIDIA packages or the driver provide; two "
            "copies in one process break each other: repair the wheel with `auditwheel repair --exclude`"
        ]
        if grafted
        else []
    )
    return make_proof(facts, Check.GRAFTED, errors, good="none", evidence={"grafted": grafted})


def _stem(name: str) -> str:
    return _GRAFT_HASH.sub("", name.partition(".so")[0])


def _is_theirs(name: str, theirs: set[str]) -> bool:
    stem = _stem(name)
    return (
        not theirs.isdisjoint((stem, name.partition(".so")[0]))
        or _NEVER.fullmatch(stem) is not None
        or is_driver_library(f"{stem}.so")
    )


def check_size(facts: WheelFacts, claim: WheelClaim) -> Proof | None:
    """The wheel file has at most `claim.max_size` bytes; None without a limit.

    A failure names the largest libraries, and the GPU code of each by architecture.
    """
    if not claim.max_size:
        return None
    errors = []
    if facts.size > claim.max_size:
        largest = sorted(facts.libraries, key=lambda library: -library.size)[:_MOST]
        named = [_text(library) for library in largest if library.size]
        why = f"; unpacked, the largest libraries are {join_names(named)}" if named else ""
        errors.append(f"the wheel has {size_text(facts.size)}, more than its limit of {size_text(claim.max_size)}{why}")
    good = f"{size_text(facts.size)} of at most {size_text(claim.max_size)}"
    sizes = {library.path: library.size for library in facts.libraries}
    return make_proof(facts, Check.SIZE, errors, good=good, evidence={"limit": claim.max_size, "libraries": sizes})


def _text(library: Library) -> str:
    """`ops/_C.so, 280.0 MiB (GPU code: sm_90 120.0 MiB, sm_80 90.0 MiB)`."""
    codes = sorted(library.gpu_code.items(), key=lambda item: -item[1])[:_MOST]
    shown = ", ".join(f"{code} {size_text(size)}" for code, size in codes)
    return f"{library.path} with {size_text(library.size)}" + (f" (GPU code: {shown})" if shown else "")
