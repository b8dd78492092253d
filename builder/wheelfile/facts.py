"""Facts about a wheel file: tags, libraries, symbols, GPU code, metadata. Nothing is executed."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pydantic import TypeAdapter

from builder.errors import UsageError
from builder.hashing import sha256_of
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.elf import MAGIC, read_elf
from builder.wheelfile.fatbin import measure_device_code


@dataclass(frozen=True)
class Library:
    """One ELF file inside a wheel.

    Attributes:
        path: path inside of the wheel.
        needed: DT_NEEDED entries, in file order.
        undefined: undefined dynamic symbols that are not weak, sorted, without version suffix.
        defined: defined dynamic symbols, sorted, without version suffix.
        versions: required symbol versions by library, e.g. {"libc.so.6": ("GLIBC_2.14",)}, sorted.
        sass: architectures with machine code, e.g. ("sm_75", "sm_90a"), sorted by number.
        ptx: architectures with PTX, e.g. ("compute_90",), sorted by number.
        soname: DT_SONAME, or empty.
        machine: processor as in wheel tags, e.g. `x86_64`.
        bound: (library, version) by undefined symbol, for symbols that have a version, e.g.
            {"memcpy": ("libc.so.6", "GLIBC_2.14")}.
        fatbin: the library has a section of GPU code, which may be empty.
        gpu_code: bytes by architecture of machine code and PTX, e.g. {"sm_75": 4096, "compute_90": 512}.

    """

    path: str
    needed: tuple[str, ...]
    undefined: tuple[str, ...]
    defined: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    soname: str = ""
    machine: str = ""
    bound: dict[str, tuple[str, str]] = field(default_factory=dict)
    fatbin: bool = False
    gpu_code: dict[str, int] = field(default_factory=dict)

    @property
    def basename(self) -> str:
        """File name without folders."""
        return PurePosixPath(self.path).name

    @property
    def foreign(self) -> bool:
        """Whether auditwheel copied the library from the system into the `.libs` folder."""
        return PurePosixPath(self.path).parts[0].endswith(".libs")


@dataclass(frozen=True)
class WheelFacts:
    """Facts that the file alone states.

    Attributes:
        filename: the wheel's file name.
        sha256: hex digest of the file.
        size: bytes.
        name: distribution name as METADATA writes it.
        version: version with its local part, as METADATA writes it.
        tags: the tags of WHEEL, sorted, e.g. ("cp310-abi3-manylinux_2_28_x86_64",).
        requires_dist: Requires-Dist lines of METADATA, in file order.
        requires_python: Requires-Python of METADATA or empty.
        libraries: every ELF file, sorted by path.
        files: every path in the archive, sorted.

    """

    filename: str
    sha256: str
    size: int
    name: str
    version: str
    tags: tuple[str, ...]
    requires_dist: tuple[str, ...]
    requires_python: str
    libraries: tuple[Library, ...]
    files: tuple[str, ...]


def read_facts(wheel: Path) -> WheelFacts:
    """Read a wheel from the file alone; raises UsageError when it is not a readable wheel."""
    try:
        parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise UsageError("this is not the file name of a wheel", where=wheel.name) from error
    with WheelFile(wheel) as archive:
        _check_project(archive)
        metadata = archive.metadata
        return WheelFacts(
            filename=wheel.name,
            sha256=sha256_of(wheel),
            size=wheel.stat().st_size,
            name=_header(archive, "Name"),
            version=_header(archive, "Version"),
            tags=archive.tags,
            requires_dist=tuple(str(line) for line in metadata.get_all("Requires-Dist", [])),
            requires_python=str(metadata.get("Requires-Python", "")),
            libraries=_libraries(archive),
            files=tuple(sorted(archive.names)),
        )


def _check_project(archive: WheelFile) -> None:
    project, version, *_ = parse_wheel_filename(archive.path.name)
    stem = archive.dist_info.removesuffix(".dist-info")
    if canonicalize_name(stem.rsplit("-", 1)[0]) != project:
        raise UsageError(
            f"the file is named for {project} {version}, but the metadata is in {archive.dist_info}",
            where=str(archive.path),
        )


def _header(archive: WheelFile, name: str) -> str:
    value = archive.metadata.get(name)
    if not value:
        raise UsageError(f"METADATA of the wheel has no {name}", where=str(archive.path))
    return str(value)


def _libraries(archive: WheelFile) -> tuple[Library, ...]:
    """Every ELF file, one at a time: each is unpacked to a scratch folder under a fixed name."""
    found = []
    with tempfile.TemporaryDirectory(prefix="buildfarm-facts-") as folder:
        for name in sorted(archive.names):
            with archive.open(name) as member:
                head = member.read(4)
                if head != MAGIC:
                    continue
                copy = Path(folder) / "library.so"
                with copy.open("wb") as out:
                    out.write(head)
                    shutil.copyfileobj(member, out, 1 << 20)
            try:
                library = _library(name, copy)
            except UsageError as error:
                where = f"{archive.path.name}: {name}"
                raise UsageError(error.sentence, where=where, hints=error.hints) from error
            if library is not None:
                found.append(library)
    return tuple(found)


def _library(name: str, copy: Path) -> Library | None:
    elf = read_elf(copy)
    if elf is None:
        return None
    gpu_code = measure_device_code(copy)
    return Library(
        path=name,
        needed=elf.needed,
        undefined=elf.undefined,
        defined=elf.defined,
        versions=elf.versions,
        sass=tuple(code for code in gpu_code if code.startswith("sm_")),
        ptx=tuple(code for code in gpu_code if code.startswith("compute_")),
        soname=elf.soname,
        machine=elf.machine,
        bound=elf.bound,
        fatbin=elf.fatbin,
        gpu_code=gpu_code,
    )


_adapter = TypeAdapter(WheelFacts)


def facts_to_json(facts: WheelFacts) -> dict[str, Any]:
    """Plain data (lists, dicts, strings, numbers) for the store and for `--json`."""
    data: dict[str, Any] = _adapter.dump_python(facts, mode="json")
    return data


def facts_from_json(data: dict[str, Any]) -> WheelFacts:
    """Read what `facts_to_json` wrote; raises ValueError on anything else."""
    return _adapter.validate_python(data)
