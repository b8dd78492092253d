"""Facts, claims, symbol tables, real ELF files and wheels, as small as the tests need them."""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Torch
from builder.proof import Proof
from builder.proofs.static.claim import WheelClaim
from builder.proofs.static.symbol_table import ProvidedLibrary, SymbolTable
from builder.wheelfile.facts import Library, WheelFacts
from tests.unit.loopback import pure_wheel

CELL = Cell.parse("torch2.11.0-cu130-cp312")
PROVIDED = frozenset(
    {"libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libcudart.so.13", "libgomp.so.1"}
)
FORWARD = "_Z27ms_deform_attn_cuda_forwardRKN2at6TensorES2_S2_S2_S2_i"


def library(path: str = "ops/_C.so", **facts: Any) -> Library:
    plain: dict[str, Any] = {
        "needed": ("libtorch_cpu.so", "libc.so.6"),
        "undefined": (),
        "defined": ("PyInit__C",),
        "versions": {},
        "sass": (),
        "ptx": (),
        "machine": "x86_64",
    }
    return Library(path=path, **(plain | facts))


def gpu_library(*sass: str, path: str = "ops/_C_cuda.so", ptx: tuple[str, ...] = (), **facts: Any) -> Library:
    return library(path, fatbin=True, sass=sass, ptx=ptx, **facts)


def wheel_facts(*libraries: Library, tag: str = "cp312-cp312-manylinux_2_28_x86_64", **facts: Any) -> WheelFacts:
    version = facts.get("version", "1.0+cu130.torch2.11")
    plain: dict[str, Any] = {
        "filename": f"ops-{version}-{tag}.whl",
        "sha256": "ab" * 32,
        "size": 1,
        "name": "ops",
        "version": version,
        "tags": (tag,),
        "requires_dist": ("torch>=2.11,<2.12",),
        "requires_python": ">=3.10",
        "libraries": libraries,
        "files": (),
    }
    return WheelFacts(**(plain | facts))


def claim(**fields: Any) -> WheelClaim:
    plain: dict[str, Any] = {
        "abi": AbiClass.CPYTHON,
        "torch": Torch(2, 11, 0),
        "cuda": Cuda(13, 0),
        "archs": (Arch(9, 0),),
        "cuda_required": True,
        "local": "cu130.torch2.11",
        "requires": ("torch>=2.11,<2.12",),
        "cells": (CELL,),
    }
    return WheelClaim(**(plain | fields))


def table(
    libraries: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] | None = None, *, cxx11: bool = True
) -> SymbolTable:
    """A small torch: {file name: (needed, defined)} added to the libraries that every torch has."""
    plain: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "libc10.so": ((), ("_ZN3c105ErrorC1Ev",)),
        "libtorch_cpu.so": (("libc10.so", "libstdc++.so.6"), ("_ZN2at6Tensor3fooEv", "torch_call_dispatcher")),
        "libtorch_cuda.so": (("libtorch_cpu.so", "libcudart.so.13"), ("aoti_torch_get_current_cuda_stream",)),
        "libtorch.so": (("libtorch_cpu.so", "libtorch_cuda.so"), ()),
        "libcudart.so.13": ((), ("cudaMalloc", "cudaFree")),
        "libtorch_global_deps.so": (("libcudart.so.13", "libm.so.6"), ()),
    }
    parts = plain | dict(libraries or {})
    return SymbolTable(
        {n: ProvidedLibrary(needed, frozenset(defined)) for n, (needed, defined) in parts.items()}, cxx11
    )


def expect(proof: Proof | None, error: str = "", remark: str = "") -> Proof:
    """The check failed with these words, which may be a pattern, or passed without; a remark has these words."""
    assert proof is not None
    assert proof.verdict == ("failed" if error else "passed"), proof.reason
    assert error in proof.reason or re.search(error, proof.reason), proof.reason
    assert remark in " ".join(proof.evidence.get("remarks", ()))
    return proof


def fat_binary(*entries: tuple[int, int, int], isa: tuple[int, int] = (0, 0)) -> bytes:
    """A container of GPU code: each entry is (kind: 1 PTX, 2 machine code; architecture; flags); `isa` of the PTX."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, 8, 0, 0, isa[1], isa[0], number, 0, 0, flags, 0, 0)
        + b"\x7fELF\0\0\0\0"
        for kind, number, flags in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def make_wheel(
    folder: Path, files: Mapping[str, bytes | Path], *, tag: str = "cp312-cp312-linux_x86_64", **facts: Any
) -> Path:
    """A wheel of `ops` with these files; `facts` are of `pure_wheel`."""
    members = {name: one.read_bytes() if isinstance(one, Path) else one for name, one in files.items()}
    return pure_wheel(folder, "ops", facts.pop("version", "1.0"), members, tag=tag, **facts)
