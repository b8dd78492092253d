"""What a wheel that others built claims: its class, its cells, and whether it must contain GPU code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from packaging.tags import parse_tag

from builder.matrix.axes import STABLE_FLOOR, AbiClass, Cell, Cuda
from builder.proofs.foreign.claimed_cells import CellClaims
from builder.proofs.static.claim import WheelClaim
from builder.proofs.static.stable_abi import shims
from builder.proofs.static.system_symbols import is_python, is_torch_cxx
from builder.wheelfile.facts import Library, WheelFacts

_TORCH_LIBRARY = re.compile(r"lib(?:torch|c10|shm)(?:_\w+)?\.so(?:\.\d+)*")
#: Libraries of the NVIDIA packages that torch requires.
_NVIDIA_LIBRARY = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn(?:_\w+)?|cufft|cufftw|cufile|cupti|curand|cusolver|cusolverMg|cusparse|"
    r"cusparseLt|nccl|nvJitLink|nvrtc|nvshmem_host|nvToolsExt)\.so\.[\d.]+"
)


def uses_torch(facts: WheelFacts) -> bool:
    """Whether a library links torch or calls a function of torch, or METADATA requires torch."""
    return CellClaims(facts).requires_torch or any(map(links_torch, facts.libraries))


def links_torch(library: Library) -> bool:
    """Whether a library links torch or calls a function of torch."""
    return any(_TORCH_LIBRARY.fullmatch(name) for name in library.needed) or any(
        is_torch_cxx(symbol) or symbol in shims() for symbol in library.undefined
    )


def foreign_claim(facts: WheelFacts, cells: Sequence[Cell], *, cuda_required: bool = False) -> WheelClaim:
    """The claim of a wheel in these cells, which may be none.

    The wheel claims no GPU architecture. It must contain GPU code if its version names a CUDA, or with `cuda_required`.
    """
    return WheelClaim(
        abi=abi_class(facts),
        torch=min((cell.torch for cell in cells), default=STABLE_FLOOR),
        cuda=min((cell.cuda for cell in cells), default=Cuda(0, 0)),
        archs=(),
        cuda_required=bool(CellClaims(facts).variant) or cuda_required,
        local="",
        requires=(),
        cells=tuple(sorted(cells)),
        foreign=True,
    )


def abi_class(facts: WheelFacts) -> AbiClass:
    """The class that the tags and the symbols of the libraries show."""
    symbols = {symbol for library in facts.libraries for symbol in library.undefined}
    any_python = any(tag.abi == "abi3" for line in facts.tags for tag in parse_tag(line))
    if any_python or not any(map(is_python, symbols)):
        if not symbols.isdisjoint(shims()) and not any(map(is_torch_cxx, symbols)):
            return AbiClass.STABLE
        if any_python:
            return AbiClass.ABI3
    return AbiClass.CPYTHON


def provided_by_torch(facts: WheelFacts) -> frozenset[str]:
    """The needed libraries that have the name of a library of torch or its NVIDIA packages.

    Whether a cell really has them is a matter of the check `linkage`, which reads the libraries of the cell.
    """
    needed = {name for library in facts.libraries for name in library.needed}
    return frozenset(name for name in needed if _TORCH_LIBRARY.fullmatch(name) or _NVIDIA_LIBRARY.fullmatch(name))
