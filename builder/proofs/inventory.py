"""A symbol inventory: which symbols the libraries of one torch release define, as one small file."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import Code, MissingToolError, UsageError
from builder.log import print_line
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.proofs.static.symbol_table import SymbolTable
from builder.store import Store, write_atomic
from builder.untrusted import MAX_JSON, JsonError, parse_json
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.elf import Elf, read_elf
from builder.wheels.build_scripts.new_environment import stated

#: Version of the file format.
_FORMAT = 2
_NAME = re.compile(r"(torch[\d.]+-cu\d+-\w+)\.json\.gz")
#: Libraries in the folder torch/lib that are torch's own, by file name.
_OWN = re.compile(r"lib(?:torch|c10|shm|caffe2|gomp)[\w-]*\.so(?:\.\d+)*")
#: Libraries of NVIDIA's packages that other packages load although torch's libraries do not need them.
_ALSO = {"nvidia-cuda-nvrtc": "nvrtc", "nvidia-nvjitlink": "nvJitLink", "nvidia-cublas": "cublas"}
_NVIDIA = re.compile(r"lib(?:cu|nv|nccl)\w*\.so(?:\.\d+)*")
#: Bytes of torch/version.py.
_MAX_VERSION = 65_536


@dataclass(frozen=True, order=True)
class Release:
    """A torch release as one wheel has it: release, CUDA and processor. Its name is `torch2.11.0-cu130-x86_64`."""

    torch: Torch
    cuda: Cuda
    machine: str

    @classmethod
    def parse(cls, text: str) -> Release:
        """Read a name; raises UsageError for anything else."""
        torch, _, rest = text.removeprefix("torch").partition("-")
        cuda, _, machine = rest.partition("-")
        return cls(Torch.parse(torch), Cuda.parse(cuda), machine)

    def __str__(self) -> str:
        return f"torch{self.torch}-{self.cuda.variant}-{self.machine}"


@dataclass(frozen=True)
class Shelf:
    """A folder of symbol inventories. Of each release, it has one."""

    folder: Path

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases with an inventory, oldest first."""
        found = map(_NAME.fullmatch, (path.name for path in self.folder.glob("torch*.json.gz")))
        return tuple(sorted(Release.parse(match[1]) for match in found if match))

    def _path(self, release: Release) -> Path:
        return self.folder / f"{release}.json.gz"

    def read(self, release: Release) -> SymbolTable:
        """The symbols of a release that the shelf has. Raises UsageError if its file is damaged."""

        def table(found: dict[str, Any]) -> SymbolTable:
            if (found["format"], found["release"]) != (_FORMAT, str(release)):
                raise ValueError("a different format or release")
            return SymbolTable.from_json(found["table"])

        path = self._path(release)
        with suppress(OSError):
            os.utime(path)  # `store prune` deletes what was not used
        try:
            return parse_json(zlib.decompressobj(wbits=31).decompress(path.read_bytes(), MAX_JSON + 1), table)
        except (JsonError, zlib.error) as error:
            sentence = "this is not a symbol inventory that this version of buildfarm reads"
            hint = "delete the file: `buildfarm verify` reads the release again"
            raise UsageError(sentence, Code.FILE_INVALID, where=str(path), hints=[hint]) from error

    def add(self, release: Release, table: SymbolTable) -> Path:
        """Keep the symbols of a release, in place of earlier ones; the same libraries make the same bytes."""
        data = {"format": _FORMAT, "release": str(release), "table": table.to_json()}
        content = gzip.compress(json.dumps(data, sort_keys=True, separators=(",", ":")).encode(), 1, mtime=0)
        write_atomic(path := self._path(release), content)
        return path


def shelf_of(store: Store) -> Shelf:
    """The symbol inventories of a store."""
    return Shelf(store.root / "inventories")


def inventory_of_index(release: Release, store: Store) -> SymbolTable:
    """Read the libraries of a release of the package index, or of PyTorch's own for another CUDA. Executes nothing.

    The wheel, up to 1 GB, is downloaded and deleted again. Raises MissingToolError if an index cannot be reached, has
    no wheel for the processor, or sends another release; UsageError if it has no such release.
    """
    from builder.wheels.sources.index import fetch  # noqa: PLC0415 - few wheels need it
    from builder.wheels.upstream import torch_wheels  # noqa: PLC0415 - loads slowly

    compat, (torch, cuda) = Compat.load(), (release.torch, release.cuda)
    own = [] if compat.is_default_variant(torch, cuda) else [TORCH_INDEX.replace("{variant}", cuda.variant)]
    _, wheels = torch_wheels(compat.torch_requirement(torch, cuda), *own)
    fitting = [one for one in wheels if one.machine == release.machine and not one.python.free_threaded]
    if not fitting:
        sentence = f"the index has no wheel for {release.machine}"
        raise MissingToolError(sentence, Code.PACKAGE_NOT_FOUND, where=f"torch {torch}")
    file = max(fitting, key=lambda one: (one.python, one.file.name)).file
    print_line(f"download {file.name} and read which symbols it defines")
    with store.work("inventory") as folder:
        path = fetch(file, folder, kind="wheel", where=f"torch {torch}", who="the index lists")
        with WheelFile(path) as wheel:
            found, table = inventory_of_wheel(wheel)
    if found != release:
        sentence = f"the wheel contains {found}, not {release}"
        raise MissingToolError(sentence, Code.SOURCE_DIFFERS, where=file.name)
    return table


def inventory_of_wheel(archive: WheelFile) -> tuple[Release, SymbolTable]:
    """Read the libraries of a torch wheel. Raises UsageError for another wheel and for a torch without CUDA.

    Of the libraries in NVIDIA's packages, only the names are known: those that torch's libraries need.
    """
    members = {PurePosixPath(name).name: name for name in archive.names if name.startswith("torch/lib/")}
    other = UsageError("this is no torch wheel with CUDA and libraries", Code.NOT_A_WHEEL, where=str(archive.path))
    if "libtorch_cpu.so" not in members or "torch/version.py" not in archive.names:
        raise other
    with archive.open("torch/version.py") as stream:
        text = stream.read(_MAX_VERSION).decode(errors="replace")
    version, cuda_version = stated(text)
    if not (version and cuda_version):
        raise other
    torch, cuda = Torch.parse(version), Cuda.parse(cuda_version)
    elves: dict[str, Elf] = {}
    with tempfile.TemporaryDirectory(prefix="buildfarm-inventory-") as folder:
        for name in sorted(members):
            if _OWN.fullmatch(name):
                copy = archive.unpack(members[name], Path(folder, "library.so"))
                if elf := read_elf(copy):
                    elves[name] = elf
                copy.unlink()
    if "libc10.so" not in elves:
        raise other
    lines = [str(line) for line in archive.metadata.get_all("Requires-Dist", [])]
    required = {  # libraries of packages that METADATA requires
        f"lib{stem}.so.{cuda.major}"
        for package, stem in _ALSO.items()
        if any(line.startswith((package, "cuda-toolkit")) for line in lines)
    }
    others = {*members, *required}.union(*(elf.needed for elf in elves.values()))
    unread = sorted(name for name in others if _NVIDIA.fullmatch(name))
    return Release(torch, cuda, elves["libc10.so"].machine), SymbolTable.of(elves, unread)
