"""What the libraries of torch and its NVIDIA packages define and need, read from the files. Nothing is loaded.

This module is copied into containers with `builder.wheelfile.elf` and pyelftools, so it imports nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import MissingToolError
from builder.wheelfile.elf import Elf, read_elf


@dataclass(frozen=True)
class ProvidedLibrary:
    """A library of an environment: file name (equal to its soname), DT_NEEDED, and the symbols it defines."""

    name: str
    needed: tuple[str, ...]
    defined: frozenset[str]

    @classmethod
    def of(cls, name: str, elf: Elf) -> ProvidedLibrary:
        """The library of this file name."""
        return cls(name, elf.needed, frozenset(elf.defined))


@dataclass(frozen=True)
class SymbolTable:
    """The libraries that torch and the NVIDIA packages of one environment provide.

    Attributes:
        libraries: by file name, e.g. `libtorch_cpu.so`, `libcudart.so.13`.
        cxx11: torch uses the C++11 ABI of std::string (`_GLIBCXX_USE_CXX11_ABI=1`).

    """

    libraries: dict[str, ProvidedLibrary]
    cxx11: bool = True

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        libraries = [[one.name, list(one.needed), sorted(one.defined)] for one in self.libraries.values()]
        return {"libraries": libraries, "cxx11": self.cxx11}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SymbolTable:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError on anything else."""
        found = (
            ProvidedLibrary(name, tuple(needed), frozenset(defined)) for name, needed, defined in data["libraries"]
        )
        return cls({one.name: one for one in found}, bool(data["cxx11"]))


def collect_symbols(site_packages: Path) -> SymbolTable:
    """Read the dynamic symbols of torch and the NVIDIA packages installed in an environment; loads nothing.

    Takes about 0.5 s for torch 2.11 with CUDA 13.0 (59 libraries, 117,000 symbols), so nothing is cached. Raises
    MissingToolError when torch is not installed.
    """
    lib = site_packages / "torch" / "lib"
    if not (lib / "libtorch_cpu.so").is_file():
        raise MissingToolError("torch is not installed in this environment", where=str(site_packages))
    files = [*lib.glob("*.so*"), *site_packages.glob("nvidia/**/lib/*.so*")]
    libraries = {file.name: ProvidedLibrary.of(file.name, elf) for file in sorted(files) if (elf := read_elf(file))}
    return SymbolTable(libraries, _uses_cxx11(libraries["libc10.so"].defined))


def _uses_cxx11(defined: Iterable[str]) -> bool:
    # With the old ABI no function of libc10 uses the new string type; with the new ABI dozens do (2.2: 0, 2.11: 40).
    return any("NSt7__cxx1112basic_string" in name for name in defined if name.startswith(("_ZN3c10", "_ZNK3c10")))
