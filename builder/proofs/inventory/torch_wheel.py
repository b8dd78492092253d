"""Makes symbol inventories from a torch wheel, or from an environment in which torch is installed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from builder.errors import UsageError
from builder.matrix.axes import Cuda, Torch
from builder.proofs.inventory.inventory import Inventory, Release
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.elf import Elf, read_elf

#: Libraries in the folder torch/lib that are torch's own, by file name.
_OWN = re.compile(r"lib(?:torch|c10|shm|caffe2|gomp)[\w-]*\.so(?:\.\d+)*")
#: Libraries of NVIDIA's packages that other packages load although torch's libraries do not need them.
_ALSO = {"nvidia-cuda-nvrtc": "nvrtc", "nvidia-nvjitlink": "nvJitLink", "nvidia-cublas": "cublas"}
_NVIDIA = re.compile(r"lib(?:cu|nv|nccl)\w*\.so(?:\.\d+)*")
#: Bytes of torch/version.py.
_MAX_VERSION = 65_536


def inventory_of_wheel(archive: WheelFile) -> Inventory:
    """Read the libraries of a torch wheel. Raises UsageError for another wheel and for a torch without CUDA.

    Of the libraries in NVIDIA's packages, only the names are known: those that torch's libraries need.
    """
    members = {PurePosixPath(name).name: name for name in archive.names if name.startswith("torch/lib/")}
    if "libtorch_cpu.so" not in members or "torch/version.py" not in archive.names:
        raise UsageError("this is no torch wheel with shared libraries", where=str(archive.path))
    torch, cuda = _version(_head(archive, "torch/version.py"), str(archive.path))
    elves: dict[str, Elf] = {}
    with tempfile.TemporaryDirectory(prefix="buildfarm-inventory-") as folder:
        for name in sorted(members):
            if _OWN.fullmatch(name):
                copy = archive.unpack(members[name], Path(folder, "library.so"))
                if elf := read_elf(copy):
                    elves[name] = elf
                copy.unlink()
    return _inventory(torch, cuda, elves, [*members, *_needed(elves), *_required(archive, cuda)])


def inventory_of_environment(site_packages: Path) -> Inventory:
    """Read torch and the NVIDIA packages of an environment; nothing is loaded.

    Raises MissingToolError when torch is not installed, UsageError for a torch without CUDA.
    """
    table = collect_symbols(site_packages)
    version = (site_packages / "torch" / "version.py").read_text(errors="replace")
    torch, cuda = _version(version, str(site_packages))
    elf = read_elf(site_packages / "torch" / "lib" / "libc10.so")
    return Inventory(Release(torch, cuda, elf.machine if elf else ""), table)


def _inventory(torch: Torch, cuda: Cuda, elves: dict[str, Elf], others: Iterable[str]) -> Inventory:
    unread = sorted({name for name in others if _NVIDIA.fullmatch(name)})
    return Inventory(Release(torch, cuda, elves["libc10.so"].machine), SymbolTable.of(elves, unread))


def _needed(elves: dict[str, Elf]) -> set[str]:
    return {name for elf in elves.values() for name in elf.needed}


def _required(archive: WheelFile, cuda: Cuda) -> set[str]:
    """Libraries of packages that METADATA requires, by their CUDA major version."""
    lines = [str(line) for line in archive.metadata.get_all("Requires-Dist", [])]
    return {
        f"lib{stem}.so.{cuda.major}"
        for package, stem in _ALSO.items()
        if any(line.startswith((package, "cuda-toolkit")) for line in lines)
    }


def _head(archive: WheelFile, name: str) -> str:
    with archive.open(name) as stream:
        return stream.read(_MAX_VERSION).decode(errors="replace")


def _version(text: str, where: str) -> tuple[Torch, Cuda]:
    """The release and the CUDA that torch/version.py states; the file is not executed."""
    torch = re.search(r"^__version__ = '(\d+\.\d+\.\d+)", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*= '(\d+\.\d+)", text, re.MULTILINE)
    if torch is None:
        raise UsageError("torch/version.py does not name a release", where=where)
    if cuda is None:
        raise UsageError(f"torch {torch[1]} was built without CUDA; name one with CUDA", where=where)
    return Torch.parse(torch[1]), Cuda.parse(cuda[1])
