"""Facts about a wheel file: tags, libraries, symbols, GPU code, metadata. Nothing is executed."""

from __future__ import annotations

import posixpath
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.errors import Code, UsageError
from builder.formats import sha256_of
from builder.gate.imports.extension_modules import ENTRY_POINT, MODULE_FILE, entry_points
from builder.wheelfile.archive import WheelFile, installed_path
from builder.wheelfile.compatibility import check_wheel_name
from builder.wheelfile.elf import HEAD, MAGIC, Elf, read_elf, what_else
from builder.wheelfile.fatbin import read_device_code
from builder.wheelfile.limits import MAX_NAME, MAX_REQUIREMENT
from builder.wheelfile.text_files import missing_headers, python_uses, startup_lines

if TYPE_CHECKING:
    from pydantic import TypeAdapter

#: A needed library whose version is that of CUDA, also with the hash that auditwheel adds.
_CUDA_RUNTIME = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)(?:[-.][0-9a-f]{8,})?\.so\.(\d+)\b")
#: The libraries of torch itself.
TORCH_LIBRARY = re.compile(r"lib(?:torch|c10|shm|caffe2)(?:_\w+)?\.so(?:\.\d+)*")
#: The name of a library of Linux.
_NAMED_LIBRARY = re.compile(r"(?<!-darwin)\.so(?:\.\d+)*$")
_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?=/|$)(?P<rest>[^$]*)")
#: Variables whose values only the machine knows.
_UNKNOWN = re.compile(r"\$\{?(?:LIB|PLATFORM)\b")


@dataclass(frozen=True, kw_only=True)
class Library(Elf):
    """One ELF file inside a wheel."""

    #: Path inside of the wheel.
    path: str
    #: Architectures with machine code, e.g. ("sm_75", "sm_90a"), sorted by number.
    sass: tuple[str, ...]
    #: Architectures with PTX, e.g. ("compute_90",), sorted by number.
    ptx: tuple[str, ...]
    #: Bytes by architecture of machine code, PTX and other kinds, e.g. {"sm_75": 4096, "compute_90": 512}.
    gpu_code: dict[str, int] = field(default_factory=dict)
    #: Version of the PTX language by architecture, e.g. {"compute_90": "8.7"}.
    ptx_isa: dict[str, str] = field(default_factory=dict)
    #: Bytes of the file, unpacked.
    size: int = 0
    #: Of the file, unpacked, hex; empty if unknown.
    sha256: str = ""

    @property
    def basename(self) -> str:
        """File name without folders."""
        return PurePosixPath(self.path).name

    @property
    def unknown_code(self) -> list[str]:
        """GPU code of a kind that buildfarm does not know, such as `kind 77 for 90`."""
        found = (code.removeprefix("kind").split("_") for code in self.gpu_code if code.startswith("kind"))
        return [f"kind {kind} for {number}" for kind, number in found]

    @property
    def foreign(self) -> bool:
        """Whether auditwheel copied the library from the system into the `.libs` folder."""
        return PurePosixPath(self.path).parts[0].endswith(".libs")

    @property
    def cuda_runtimes(self) -> frozenset[int]:
        """The major versions of CUDA whose runtime the library needs."""
        return frozenset(int(match[1]) for name in self.needed if (match := _CUDA_RUNTIME.match(name)))

    @property
    def needs_torch(self) -> bool:
        """Whether the library needs a library of torch."""
        return any(TORCH_LIBRARY.fullmatch(name) for name in self.needed)

    @property
    def is_module(self) -> bool:
        """Whether Python can import the library: it defines the function that Python calls for its file name."""
        return not set(entry_points(self.basename.partition(".")[0])).isdisjoint(self.defined)

    @property
    def module_functions(self) -> list[str]:
        """The functions that Python calls in modules, of whatever name."""
        return [name for name in self.defined if ENTRY_POINT.fullmatch(name)]


@dataclass(frozen=True)
class NoLibrary:
    """A file with the name of a library that is none."""

    #: Path inside of the wheel.
    path: str
    #: What it is, such as `an empty file`.
    what: str
    #: An unindented line of a Python file names it.
    imported: bool = False


@dataclass(frozen=True)
class Unreached:
    """A library of a wheel that another one needs, and to which no search path leads."""

    #: Path of the library that needs it, below site-packages.
    user: str
    #: Its name in DT_NEEDED.
    name: str
    #: Where the wheel has it, below site-packages.
    path: str
    #: Something may load it before: an import, or another library of the wheel.
    maybe: bool

    @property
    def why(self) -> str:
        """Why the loader does not find it, and the cure, as the end of a sentence."""
        folder, _, file = self.path.rpartition("/")
        if file != self.name:
            return f"and the wheel has it as {self.path} only: a wheel holds no links, so name the file {self.name}"
        way = posixpath.relpath(folder or ".", posixpath.dirname(self.user) or ".")
        origin = "$ORIGIN" if way == "." else f"$ORIGIN/{way}"
        return f"and no search path (RUNPATH) leads to {self.path}: link it with -Wl,-rpath,'{origin}'"


@dataclass(frozen=True)
class WheelFacts:
    """Facts that the file alone states."""

    #: The wheel's file name.
    filename: str
    #: Hex digest of the file.
    sha256: str
    #: bytes.
    size: int
    #: Distribution name as METADATA writes it.
    name: str
    #: Version with its local part, as METADATA writes it.
    version: str
    #: The tags of WHEEL, sorted, e.g. ("cp310-abi3-manylinux_2_28_x86_64",).
    tags: tuple[str, ...]
    #: Requires-Dist lines of METADATA, in file order.
    requires_dist: tuple[str, ...]
    #: Requires-Python of METADATA or empty.
    requires_python: str
    #: Every ELF file, sorted by path.
    libraries: tuple[Library, ...]
    #: Every path in the archive, sorted.
    files: tuple[str, ...]
    #: WHEEL says that the files are for the folder of pure Python packages (`Root-Is-Purelib: true`).
    purelib: bool = False
    #: What the CUDA sources in the wheel include and the wheel does not contain; see `missing_headers`.
    missing_headers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Libraries that Python code imports at its top level and that are no modules of their name, sorted.
    imported: tuple[str, ...] = ()
    #: The first line that Python executes of each file that it reads when it starts, by path.
    startup_code: dict[str, str] = field(default_factory=dict)
    #: Libraries of the wheel that others need, and that the loader does not find by its search.
    unreached: tuple[Unreached, ...] = ()
    #: Files with the name of a library, such as `_C.so`, that are none, sorted by path.
    no_libraries: tuple[NoLibrary, ...] = ()
    #: Why twine refuses METADATA; see `metadata_faults`.
    metadata_faults: tuple[str, ...] = ()

    def installed(self) -> list[str]:
        """The paths of the files below site-packages, without those of `.dist-info`, scripts, data and headers."""
        return [path for path in map(installed_path, self.files) if path]


def read_facts(wheel: Path) -> WheelFacts:
    """Read a wheel from the file alone; raises UsageError when it is not a readable wheel."""
    with open_wheel(wheel) as archive:
        return facts_of(archive, sha256_of(wheel))


def open_wheel(wheel: Path) -> WheelFile:
    """Open a wheel for reading; raises UsageError when it is not a readable wheel."""
    check_wheel_name(wheel.name)
    return WheelFile(wheel)


def facts_of(wheel: WheelFile, sha256: str) -> WheelFacts:
    """Read the facts of a wheel that `open_wheel` has opened; raises UsageError when it is damaged."""
    project, version, *_ = parse_wheel_filename(wheel.path.name)
    if canonicalize_name(wheel.dist_info.removesuffix(".dist-info").rsplit("-", 1)[0]) != project:
        raise UsageError(
            f"the file is named for {project} {version}, but the metadata is in {wheel.dist_info}",
            Code.WHEEL_MISLABELLED,
            where=str(wheel.path),
            hints=["if the file was renamed, run `buildfarm relabel WHEEL`"],
        )
    requires_dist = tuple(map(str, wheel.metadata.get_all("Requires-Dist", [])))
    libraries, others = _libraries(wheel)
    no_modules = _no_modules(libraries)
    places = {installed_path(one.path) or one.path: one for one in libraries}
    lost = _unreached(places)
    uses = python_uses(
        wheel,
        modules=no_modules,
        stems={_stem(path) for path in others},
        files={PurePosixPath(one.path).name for one in lost if not one.maybe},
    )
    name, written = _header(wheel, "Name"), _header(wheel, "Version")
    if any(len(line) > MAX_REQUIREMENT for line in requires_dist):
        raise wheel.damaged(f"METADATA of the wheel has a Requires-Dist of more than {MAX_REQUIREMENT} characters")
    return WheelFacts(
        filename=wheel.path.name,
        sha256=sha256,
        size=wheel.size,
        name=name,
        version=written,
        tags=wheel.tags,
        requires_dist=requires_dist,
        requires_python=str(wheel.metadata.get("Requires-Python", "")),
        libraries=libraries,
        files=tuple(sorted(wheel.names)),
        purelib=wheel.purelib,
        missing_headers=missing_headers(wheel),
        imported=tuple(sorted(path for module, path in no_modules.items() if module in uses.imported)),
        startup_code=startup_lines(wheel),
        unreached=tuple(replace(one, maybe=one.maybe or PurePosixPath(one.path).name in uses.loaded) for one in lost),
        no_libraries=tuple(NoLibrary(path, what, _stem(path) in uses.named) for path, what in others.items()),
        metadata_faults=tuple(metadata_faults(wheel.read_dist_info("METADATA"))),
    )


def _unreached(libraries: Mapping[str, Library]) -> list[Unreached]:
    """The libraries that are not found when Python loads a library alone, by their paths below site-packages.

    Python imports modules. It may load every library that no other one needs.

    A library searches the folders of its DT_RUNPATH. Without one, it searches those of its DT_RPATH, and those of the
    libraries that led to it. A library that is loaded already is found by its name (source: glibc, elf/dl-load.c; the
    order of the search is that of elf/dl-deps.c).
    """
    holders: dict[str, str] = {}
    for path, one in libraries.items():
        for name in (one.soname, one.basename):  # a file of the name wins
            if name:
                holders[name] = path
    wanted = {name for one in libraries.values() for name in one.needed}
    loaded: set[str] = set()
    lost: dict[tuple[str, str], bool] = {}
    for path, one in libraries.items():
        names = {one.soname, one.basename}
        if one.is_module or (wanted.isdisjoint(names) and ".so" in path):
            found, missing = _load(path, libraries, holders)
            loaded |= found
            for pair in missing:
                lost[pair] = lost.get(pair, False) or one.is_module
    return [
        Unreached(user, name, holders[name], not by_module or name in loaded or libraries[holders[name]].is_module)
        for (user, name), by_module in sorted(lost.items())
    ]


def _load(
    root: str, libraries: Mapping[str, Library], holders: Mapping[str, str]
) -> tuple[set[str], list[tuple[str, str]]]:
    """The names of the wheel's libraries that are loaded with one, and (user, name) of those that are not found."""
    loaded: set[str] = {libraries[root].soname}
    missing: list[tuple[str, str]] = []
    todo: list[tuple[str, list[str]]] = [(root, [])]
    for path, inherited in todo:
        library = libraries[path]
        own = list(_folders(path, library.search))
        passed_on = [*own, *inherited] if library.rpath or not library.search else inherited
        folders = passed_on if library.rpath or not library.search else own
        for name in library.needed:
            if name in loaded or name not in holders or any("$" in folder for folder in folders):
                continue
            places = (posixpath.normpath(posixpath.join(folder, name)) for folder in folders)
            if found := next((place for place in places if place in libraries), ""):
                loaded |= {name, libraries[found].soname}
                todo.append((found, passed_on))
            else:
                missing.append((path, name))
    return loaded, missing


def _folders(path: str, entries: Sequence[str]) -> Iterator[str]:
    """The folders below site-packages of run path entries; `$` for one with an unknown variable."""
    for entry in entries:
        if match := _ORIGIN.fullmatch(entry):
            yield posixpath.join(posixpath.dirname(path), match["rest"].lstrip("/"))
        elif _UNKNOWN.search(entry):
            yield "$"


def _stem(path: str) -> str:
    return PurePosixPath(path).name.partition(".")[0]


def _no_modules(libraries: Sequence[Library]) -> dict[str, str]:
    """The paths of the libraries with the file name or the functions of a module that are none, by its full name."""
    return {
        installed_path(one.path).removesuffix(file["suffix"]).replace("/", "."): one.path
        for one in libraries
        if (file := MODULE_FILE.fullmatch(one.basename))
        and installed_path(one.path)
        and not (one.is_module or one.foreign)
        and (one.module_functions or file["suffix"] != ".so")
    }


def metadata_faults(metadata: bytes) -> list[str]:
    """What the library `packaging` finds wrong with METADATA, without the fields that the check `metadata` reads.

    twine 7.0.0 refuses such a wheel (twine/package.py); pip and uv install it. As twine does, it ignores License-File
    before version 2.4, which setuptools wrote.
    """
    from packaging.metadata import Metadata, parse_email  # noqa: PLC0415 - loads slowly

    raw, unknown = parse_email(re.split(rb"\r?\n\r?\n", metadata, maxsplit=1)[0])
    if raw.get("metadata_version", "") in ("1.0", "1.1", "1.2", "2.0", "2.1", "2.2", "2.3"):
        raw.pop("license_files", None)
    raw = {**raw, "version": "0", "requires_dist": [], "requires_python": ""}
    faults = [f"{name} is unknown, or has no value of its form" for name in unknown]
    try:
        Metadata.from_raw(raw)
    except ExceptionGroup as group:
        faults += map(str, group.exceptions)
    return [fault[:MAX_NAME] for fault in faults]


def _header(archive: WheelFile, name: str) -> str:
    value = archive.metadata.get(name)
    if not value:
        raise archive.damaged(f"METADATA of the wheel has no {name}")
    if len(value) > MAX_NAME:
        raise archive.damaged(f"{name} in METADATA has more than {MAX_NAME} characters")
    return str(value)


def _libraries(archive: WheelFile) -> tuple[tuple[Library, ...], dict[str, str]]:
    """Every library, unpacked one at a time under a fixed name, and what each other file of such a name is."""
    found, others = [], {}
    with tempfile.TemporaryDirectory(prefix="buildfarm-facts-") as folder:
        for name in sorted(archive.names):
            with archive.open(name) as member:
                head = member.read(HEAD)
            if not head.startswith(MAGIC):
                if _NAMED_LIBRARY.search(name):
                    others[name] = what_else(head)
                continue
            copy = archive.unpack(name, Path(folder, "library.so"))
            try:
                library = read_library(name, copy)
            except UsageError as error:
                where = f"{archive.path.name}: {name}"
                raise UsageError(error.sentence, error.code, where=where, hints=error.hints) from error
            if library is not None:
                found.append(library)
            elif _NAMED_LIBRARY.search(name):
                others[name] = what_else(head)
    return tuple(found), others


def read_library(path: str, file: Path) -> Library | None:
    """Read one file as the library at `path` of a wheel; None if it is no library. Raises what `read_elf` raises."""
    elf = read_elf(file)
    if elf is None:
        return None
    sizes, ptx_isa = read_device_code(file)
    return Library(
        path=path,
        sass=tuple(name for name in sizes if name.startswith("sm_")),
        ptx=tuple(name for name in sizes if name.startswith("compute_")),
        gpu_code=sizes,
        ptx_isa=ptx_isa,
        size=file.stat().st_size,
        sha256=sha256_of(file),
        **vars(elf),
    )


@cache
def _adapter() -> TypeAdapter[WheelFacts]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - loads slowly; a verdict as text does not need it

    return TypeAdapter(WheelFacts)


def facts_to_json(facts: WheelFacts) -> dict[str, Any]:
    """Plain data (lists, dicts, strings, numbers) for the store."""
    data: dict[str, Any] = _adapter().dump_python(facts, mode="json")
    return data


def facts_from_json(data: dict[str, Any]) -> WheelFacts:
    """Read what `facts_to_json` wrote; raises ValueError on anything else."""
    return _adapter().validate_python(data)
