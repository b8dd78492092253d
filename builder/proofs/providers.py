"""The libraries of torch and its NVIDIA packages: what each defines and needs, read from the files; nothing is loaded.

Travels into containers with `builder.wheels.elf` and pyelftools, so it imports nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import MissingToolError
from builder.wheels.elf import Elf, read_elf


@dataclass(frozen=True)
class Provider:
    """A library that is there: its file name (which is its soname here), DT_NEEDED, and what it defines."""

    name: str
    needed: tuple[str, ...]
    defined: frozenset[str]

    @classmethod
    def of(cls, name: str, elf: Elf) -> Provider:
        """What a file of that name provides."""
        return cls(name, elf.needed, frozenset(elf.defined))


@dataclass(frozen=True)
class SymbolTable:
    """Every library that torch and the NVIDIA packages of one environment provide.

    Attributes:
        providers: by file name, e.g. `libtorch_cpu.so`, `libcudart.so.13`.
        cxx11: torch uses the C++11 ABI of std::string (`_GLIBCXX_USE_CXX11_ABI=1`).

    """

    providers: dict[str, Provider]
    cxx11: bool = True

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        told = [[one.name, list(one.needed), sorted(one.defined)] for one in self.providers.values()]
        return {"providers": told, "cxx11": self.cxx11}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SymbolTable:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError on anything else."""
        providers = (Provider(name, tuple(needed), frozenset(defined)) for name, needed, defined in data["providers"])
        return cls({one.name: one for one in providers}, bool(data["cxx11"]))


def collect_symbols(site_packages: Path) -> SymbolTable:
    """Read the dynamic symbols of torch and the NVIDIA packages installed in an environment; loads nothing.

    About 0.5 s for torch 2.11 with CUDA 13.0 (59 libraries, 117,000 symbols), so nothing is cached. Raises
    MissingToolError when torch is not there.
    """
    lib = site_packages / "torch" / "lib"
    if not (lib / "libtorch_cpu.so").is_file():
        raise MissingToolError("torch is not installed in this environment", where=str(site_packages))
    files = [*lib.glob("*.so*"), *site_packages.glob("nvidia/**/lib/*.so*")]
    providers = {file.name: Provider.of(file.name, elf) for file in sorted(files) if (elf := read_elf(file))}
    return SymbolTable(providers, _uses_cxx11(providers["libc10.so"].defined))


def _uses_cxx11(defined: Iterable[str]) -> bool:
    # A libc10 of the old ABI names no new string in its own functions, the new one dozens (2.2: 0, 2.11: 40).
    return any("NSt7__cxx1112basic_string" in name for name in defined if name.startswith(("_ZN3c10", "_ZNK3c10")))
