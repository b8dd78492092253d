"""What the libraries of torch and its NVIDIA packages define and need, read from the files. Nothing is loaded.

This module is copied into containers with `builder.wheelfile.elf` and pyelftools, so it imports nothing else. It runs
there under the Python of the cell, which pyelftools needs to be 3.10 or newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import Code, MissingToolError
from builder.wheelfile.elf import Elf, read_elf


@dataclass(frozen=True)
class ProvidedLibrary:
    """A library of an environment."""

    #: DT_NEEDED.
    needed: tuple[str, ...]
    #: The symbols that it defines; empty for a library that was not read.
    defined: frozenset[str]
    #: False for a library of which only the name is known.
    read: bool = True


@dataclass(frozen=True)
class SymbolTable:
    """The libraries that torch and the NVIDIA packages of one environment provide."""

    #: By file name, e.g. `libtorch_cpu.so`, `libcudart.so.13`.
    libraries: dict[str, ProvidedLibrary]
    #: torch uses the C++11 ABI of std::string (`_GLIBCXX_USE_CXX11_ABI=1`).
    cxx11: bool = True

    @classmethod
    def of(cls, elves: Mapping[str, Elf], unread: Iterable[str] = ()) -> SymbolTable:
        """The table of libraries that were read, by file name, and of those whose names alone are known."""
        libraries = {name: ProvidedLibrary(elf.needed, frozenset(elf.defined)) for name, elf in elves.items()}
        libraries |= {name: ProvidedLibrary((), frozenset(), read=False) for name in unread if name not in libraries}
        # With the old ABI no function of libc10 uses the new string type; with the new one dozens (2.2: 0, 2.11: 40).
        names = [name for name in elves["libc10.so"].defined if name.startswith(("_ZN3c10", "_ZNK3c10"))]
        return cls(libraries, any("NSt7__cxx1112basic_string" in name for name in names))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        libraries = [
            [name, list(one.needed), " ".join(sorted(one.defined)) if one.read else None]
            for name, one in self.libraries.items()
        ]
        return {"libraries": libraries, "cxx11": self.cxx11}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SymbolTable:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError on anything else."""
        libraries = {
            str(name): ProvidedLibrary(tuple(map(str, needed)), frozenset((names or "").split()), names is not None)
            for name, needed, names in data["libraries"]
        }
        return cls(libraries, bool(data["cxx11"]))


def collect_symbols(site_packages: Path) -> SymbolTable:
    """Read the dynamic symbols of torch and the NVIDIA packages installed in an environment; loads nothing.

    Takes about 0.5 s for torch 2.11 with CUDA 13.0 (59 libraries, 117,000 symbols), so nothing is cached. Raises
    MissingToolError when torch is not installed.
    """
    lib = site_packages / "torch" / "lib"
    if not (lib / "libtorch_cpu.so").is_file():
        raise MissingToolError(
            "torch is not installed in this environment", Code.NO_ENVIRONMENT, where=str(site_packages)
        )
    files = [*lib.glob("*.so*"), *site_packages.glob("nvidia/**/lib/*.so*")]
    return SymbolTable.of({file.name: elf for file in sorted(files) if (elf := read_elf(file))})
