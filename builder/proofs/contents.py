"""What must be in a wheel, and what must not: GPU code yes, libraries of torch, CUDA or the driver no."""

from __future__ import annotations

import re

from builder.proof import Check, Proof
from builder.proofs.claim import Claim, judge, listed
from builder.proofs.symbols import is_driver
from builder.wheels.facts import WheelFacts

_LEFT_OUT = (
    "most likely setup.py asked torch.cuda.is_available() on a machine without a GPU; "
    "build with FORCE_CUDA=1, or with `assume_cuda: true` in its recipe"
)
#: A wheel never holds these, even where nothing is known of the cell's packages.
_NEVER = re.compile(r"lib(torch(_\w+)?|c10(_\w+)?|cudart|cublas|cublasLt|cudnn(_\w+)?|nvrtc|nvJitLink|nccl)")
#: auditwheel renames what it copies: `libcudart.so.13` becomes `libcudart-1a2b3c4d.so.13.0.96`; torchvision's
#: own tool writes `libcudart.1a2b3c4d.so.13`.
_GRAFT_HASH = re.compile(r"[-.][0-9a-f]{8,}$")


def check_payload(facts: WheelFacts, claim: Claim) -> Proof:
    """It holds a library of its own, and a CUDA extension GPU code in at least one of them."""
    faults = []
    own = [library for library in facts.libraries if not library.foreign]
    if not own:
        tags = ", ".join(facts.tags) or "untagged"
        why = _LEFT_OUT if claim.cuda_required else "look at what setup.py lists in ext_modules"
        faults.append(f"{tags} wheel with no library: the sources were left out of the build; {why}")
    elif claim.cuda_required and not any(library.fatbin for library in own):
        names = listed([library.basename for library in own])
        faults.append(f"no GPU code in {names}: the CUDA sources were left out of the build; {_LEFT_OUT}")
    evidence = {library.path: {"gpu_code": library.fatbin} for library in own}
    count = len(own)
    return judge(
        facts,
        Check.PAYLOAD,
        faults,
        good=f"{count} {'library' if count == 1 else 'libraries'}",
        evidence={"libraries": evidence},
    )


def check_grafted(facts: WheelFacts, provided: frozenset[str]) -> Proof:
    """No library that the cell's torch and NVIDIA packages provide, or that the driver does, is inside.

    `provided` holds file names such as `libtorch_cpu.so` and `libcudart.so.13`. A copy is known by its file
    name or its soname, also under the name that auditwheel gives it; two in one process are two states of
    CUDA.
    """
    # As they are spelled: a torch that carries `libgomp-a34b3233.so.1` brings no `libgomp.so.1` to anybody else.
    theirs = {name.partition(".so")[0] for name in provided}
    grafted = [
        library.path
        for library in facts.libraries
        if any(_is_theirs(name, theirs) for name in (library.basename, library.soname) if name)
    ]
    faults = (
        [
            f"it carries {listed(grafted)}, which torch, its NVIDIA packages or the driver provide: a second "
            "copy in one process breaks both; repair it again with `auditwheel repair --exclude`"
        ]
        if grafted
        else []
    )
    return judge(facts, Check.GRAFTED, faults, good="none", evidence={"grafted": grafted})


def _stem(name: str) -> str:
    return _GRAFT_HASH.sub("", name.partition(".so")[0])


def _is_theirs(name: str, theirs: set[str]) -> bool:
    stem = _stem(name)
    return (
        not theirs.isdisjoint((stem, name.partition(".so")[0]))
        or _NEVER.fullmatch(stem) is not None
        or is_driver(f"{stem}.so")
    )
