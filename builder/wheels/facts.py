"""What a wheel file says of itself: tags, libraries, symbols, GPU code, metadata. Nothing in it is run."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pydantic import TypeAdapter

from builder.errors import UsageError
from builder.wheels.device_code import list_device_code
from builder.wheels.elf import MAGIC, read_elf


@dataclass(frozen=True)
class Library:
    """One ELF file inside a wheel.

    Attributes:
        path: its path inside the wheel.
        needed: DT_NEEDED entries, in file order.
        undefined: undefined dynamic symbols that are not weak, sorted, with no version suffix.
        defined: defined dynamic symbols, sorted, with no version suffix.
        versions: version needs by library, e.g. {"libc.so.6": ("GLIBC_2.14",)}, sorted.
        sass: architectures with machine code, e.g. ("sm_75", "sm_90a"), sorted by number.
        ptx: architectures with PTX, e.g. ("compute_90",), sorted by number.
        soname: DT_SONAME, or empty.
        machine: the processor as wheel tags spell it, e.g. `x86_64`.
        bound: undefined symbol to (library, version), for those linked to a versioned library, e.g.
            {"memcpy": ("libc.so.6", "GLIBC_2.14")}.
        fatbin: it has a section of GPU code, whatever is in it.

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

    @property
    def basename(self) -> str:
        """The file's own name."""
        return PurePosixPath(self.path).name

    @property
    def foreign(self) -> bool:
        """It was copied in by auditwheel from another project, into the folder it keeps for that."""
        return PurePosixPath(self.path).parts[0].endswith(".libs")


@dataclass(frozen=True)
class WheelFacts:
    """What the file itself says.

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
    try:
        sha256 = _sha256(wheel)
        with zipfile.ZipFile(wheel) as archive:
            names = _names(archive)
            info = _dist_info(names, wheel)
            metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
            about = message_from_bytes(archive.read(f"{info}/WHEEL"))
            name, version = _header(metadata, "Name"), _header(metadata, "Version")
            libraries = _libraries(archive, names)
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        # RuntimeError: an encrypted member; NotImplementedError: a compression that no wheel uses.
        reason = getattr(error, "strerror", None) or "it is not a whole zip archive"
        raise UsageError(f"this wheel cannot be read: {reason}", where=str(wheel)) from error
    except UsageError as error:
        where = ": ".join(filter(None, (wheel.name, error.where)))
        raise UsageError(error.sentence, where=where, hints=error.hints) from error
    return WheelFacts(
        filename=wheel.name,
        sha256=sha256,
        size=wheel.stat().st_size,
        name=name,
        version=version,
        tags=tuple(sorted(str(tag) for tag in about.get_all("Tag", []))),
        requires_dist=tuple(str(line) for line in metadata.get_all("Requires-Dist", [])),
        requires_python=str(metadata.get("Requires-Python", "")),
        libraries=libraries,
        files=tuple(sorted(names)),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _names(archive: zipfile.ZipFile) -> list[str]:
    """Paths of the files, refused when unpacking them could write outside the folder or one over another."""
    names = [member.filename for member in archive.infolist() if not member.is_dir()]
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise UsageError(f"the wheel holds a file that would land outside its folder: {name!r}")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise UsageError(f"the wheel holds two files of the same name: {', '.join(twice)}")
    return names


def _dist_info(names: list[str], wheel: Path) -> str:
    project, version, *_ = parse_wheel_filename(wheel.name)
    found = sorted({name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info")})
    if len(found) != 1:
        raise UsageError(f"a wheel has one .dist-info folder, this one has {len(found)}")
    stem = found[0].removesuffix(".dist-info")
    if canonicalize_name(stem.rsplit("-", 1)[0]) != project:
        raise UsageError(f"the file is named for {project} {version}, but its metadata lies in {found[0]}")
    missing = [name for name in ("METADATA", "WHEEL") if f"{found[0]}/{name}" not in names]
    if missing:
        raise UsageError(f"its .dist-info folder lacks {' and '.join(missing)}")
    return found[0]


def _header(message: Message, name: str) -> str:
    value = message.get(name)
    if not value:
        raise UsageError(f"its METADATA has no {name}")
    return str(value)


def _libraries(archive: zipfile.ZipFile, names: list[str]) -> tuple[Library, ...]:
    """Every ELF file, written to a scratch folder under a name of ours, one at a time."""
    found = []
    with tempfile.TemporaryDirectory(prefix="buildfarm-facts-") as folder:
        for name in sorted(names):
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
                raise UsageError(error.sentence, where=name, hints=error.hints) from error
            if library is not None:
                found.append(library)
    return tuple(found)


def _library(name: str, copy: Path) -> Library | None:
    elf = read_elf(copy)
    if elf is None:
        return None
    sass, ptx = list_device_code(copy)
    return Library(
        path=name,
        needed=elf.needed,
        undefined=elf.undefined,
        defined=elf.defined,
        versions=elf.versions,
        sass=sass,
        ptx=ptx,
        soname=elf.soname,
        machine=elf.machine,
        bound=elf.bound,
        fatbin=elf.fatbin,
    )


_adapter = TypeAdapter(WheelFacts)


def facts_to_json(facts: WheelFacts) -> dict[str, Any]:
    """As plain data (lists, dicts, strings, numbers) for the store and for `--json`."""
    data: dict[str, Any] = _adapter.dump_python(facts, mode="json")
    return data


def facts_from_json(data: dict[str, Any]) -> WheelFacts:
    """Read what `facts_to_json` wrote; raises ValueError on anything else."""
    return _adapter.validate_python(data)
