"""What to do about the first error of a build, if its cause is known or it is about a file that the build misses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from posixpath import dirname, join, normpath

from packaging.utils import canonicalize_name

from builder.diagnosis.first_error import FirstError, place_of
from builder.diagnosis.known_errors import NO_HEADER, KnownError, Package, knowledge, plain_quotes
from builder.masking import mask_credentials
from builder.matrix.axes import Cuda, Torch

_NO_MODULE = re.compile(r"No module named '?(\w[\w.]*)")
_NO_HEADER = re.compile(NO_HEADER.replace("{headers}", r"[^\s:']+"))
_NO_LIBRARY = re.compile(r"cannot find -l(\S+?):?(?:\s|$)|unable to find library -l(\S+)|library not found: (\S+)")
_NO_CMAKE_PACKAGE = re.compile(r"configuration file provided by '([\w-]+)'|Could NOT find (\w+)")
_NO_PROGRAM = re.compile(
    r"No such file or directory: '([\w-]+)'|sh: (?:line )?\d+: ([\w-]+): (?:command )?not found"
    r"|error: command '([\w-]+)' failed: No such file"
)
_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cxx")
#: ninja, the compiler proper and CMake about a source file that does not exist.
_NO_SOURCE = re.compile(
    r"ninja: error: '(?P<ninja>[^']+)',.* missing and no known rule"
    r"|^cc1(?:plus)?: fatal error: (?P<compiler>\S+): No such file"
    r"|Cannot find source file:\s+(?P<cmake>\S+)"
)
_INCLUDE_DIR = re.compile(r"(?<!\S)(?:-I ?|-isystem ?)(\S+)")
#: Of a submodule in .gitmodules.
_SETTING = re.compile(r"^\s*(path|url)\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_WORD = re.compile(r"[\w.+/-]+")
#: Bytes of a file that is read.
_BYTES = 1 << 20


def hints_for(
    error: FirstError, torch: Torch, cuda: Cuda, *, container: bool, packages: Sequence[str] = ()
) -> list[str]:
    """What to do about an error in a build for this torch and CUDA; empty if the cause is not known.

    `container` is whether the build runs in a container of an image. `packages` are those of its environment, as exact
    requirements.
    """
    message = plain_quotes(error.message)
    shown = plain_quotes("\n".join((error.message, *error.excerpt)))  # some rows name a macro, which gcc only shows
    for known in (each for each in knowledge().errors if each.section != "imports"):
        if not (known.torch and torch < known.torch) and not (known.cuda and cuda < known.cuda):
            for form in known.forms:
                if found := form.search(shown if known.section == "missing_include" else message):
                    return [_hint(known, found, torch, cuda)]
    installed = {canonicalize_name(package.partition("==")[0]) for package in packages}
    return list(next(_missing(message, cuda, installed, container=container), ()))


def _hint(known: KnownError, found: re.Match[str], torch: Torch, cuda: Cuda) -> str:
    groups = {key: text for key, text in found.groupdict().items() if text}
    name = next((groups[key] for key in ("name", "member", "header", "clang", "nvcc") if key in groups), "")
    hint = known.hint.format_map(groups | {"name": name, "torch": torch, "cuda": cuda})
    if known.section == "removed_from_torch" and known.torch and "{torch}" not in known.hint:
        return f"torch {known.torch.series} removed {name or known.about}: {hint}"
    if known.section == "removed_from_cuda" and known.cuda and name:
        return f"CUDA {known.cuda} moved or removed {name}: {hint}"
    return hint


def _named(form: re.Pattern[str], message: str) -> str:
    """What a message says is missing, or empty: the group of the pattern that matches."""
    found = form.search(message)
    return next(filter(None, found.groups())) if found else ""


def _missing(message: str, cuda: Cuda, installed: Set[str], *, container: bool) -> Iterator[list[str]]:
    """Hints for a module, a header, a library, a CMake package or a program that is not there."""
    knows = knowledge()
    if top := _named(_NO_MODULE, message).partition(".")[0]:
        yield [
            "the environment of the build has torch, so the source starts a second, isolated build: pass"
            " --no-build-isolation to the pip that it calls"
            if top == "torch"
            else f"add `{knows.modules.get(top, top)}` to `build_requires` in the recipe: the build needs this module"
        ]
    header, library = _named(_NO_HEADER, message), _named(_NO_LIBRARY, message)
    cmake = _named(_NO_CMAKE_PACKAGE, message)
    for package in knows.packages:
        for what, is_of in (
            (f"the header {header}", header and re.fullmatch(package.headers, header)),
            (f"the library {library}", library and package.library == library),
            (cmake, cmake and package.cmake.lower() == cmake.lower()),
        ):
            if is_of:
                yield [_package(package, what, cuda, installed, container=container)]
    if (program := _named(_NO_PROGRAM, message)) in knows.programs:
        requirement = knows.programs[program]
        yield [f"add `{requirement}` to `build_requires` in the recipe: the build calls the program {program}"]


def _package(package: Package, what: str, cuda: Cuda, installed: Set[str], *, container: bool) -> str:
    if package.submodule:
        return (
            f"{what} is of {package.submodule}, which is a git submodule of most sources: use the git repository as"
            " `source`, because archives of it have no submodules"
        )
    if package.pypi:
        requirement = package.pypi.format(cuda_major=cuda.major)
        brings = package.brings.format(cuda_major=cuda.major) or canonicalize_name(requirement)
        if brings in installed:
            return (
                f"{what} is in `{brings}`, which is installed, and the compiler does not search its folder: add the"
                " folder to the extension in setup.py with a patch (CUDAExtension of torch adds that of the toolkit)"
            )
        return f"{what} is in `{requirement}`: add it to `build_requires` in the recipe"
    where = f"{what} is in `{package.debian}` (Debian, Ubuntu) and `{package.dnf}` (dnf)"
    return (
        f"{where}: under `images:` in matrix.yaml, name an image that has it" if container else f"{where}: install it"
    )


@dataclass(frozen=True)
class SourceTree:
    """The source of a build."""

    #: Where its files can be read now.
    tree: Path
    #: The folder in which the compilers ran: paths in their messages begin with it.
    source: str
    #: The folder that the recipe names, from which the source was copied; None for any other source.
    origin: Path | None = None


def missing_file_hints(message: str, lines: Sequence[str], place: SourceTree) -> list[str]:
    """What to do if the first error of a build is about a file that its source does not have; often nothing.

    `message` is the complete message, `lines` are the output of the build, with the commands of the compilers.
    """
    text = plain_quotes(message)
    return _submodules(text, lines, place) or _left_out(text, place)


def _left_out(message: str, place: SourceTree) -> list[str]:
    file = normpath(_named(_NO_SOURCE, message).removeprefix(f"{place.source}/"))
    if not file.endswith(_SUFFIXES) or file.startswith(("/", "..")) or (place.tree / file).exists():
        return []
    if place.origin and (place.origin / file).is_file():
        return [f"buildfarm does not copy {file}: git ignores it, or its folder is one that a build leaves behind"]
    if (place.tree / file).with_suffix(".pyx").is_file():
        return [f"Cython makes {file} of its .pyx file: add `cython` to `build_requires` in the recipe"]
    return []


def _submodules(message: str, lines: Sequence[str], place: SourceTree) -> list[str]:
    """The command that fetches the git submodules in which the missing file would be, if they are empty."""
    sections = _text(place.tree / ".gitmodules").split("[submodule")
    modules = {
        found["path"]: found.get("url", "no URL")
        for each in sections
        if "path" in (found := dict(_SETTING.findall(each)))
    }
    wanted = [normpath(each) for each in _possible_paths(message, lines, place.source)] if modules else []
    lacking = [
        path
        for path in modules
        if not path.startswith(("/", "..")) and not any((place.tree / path).glob("*"))
        if any(f"{each}/".startswith(f"{normpath(path)}/") for each in wanted)
    ]
    if not lacking:
        return []
    names = " and ".join(f"{path} ({mask_credentials(modules[path])})" for path in lacking)
    are = "are git submodules" if len(lacking) > 1 else "is a git submodule"
    if place.origin:
        return [f"{names} {are}, and there are no files in it: `git submodule update --init {' '.join(lacking)}`"]
    return [f"{names} {are}, which the source does not contain: use the git repository as `source`"]


def _possible_paths(message: str, lines: Sequence[str], source: str) -> Iterator[str]:
    """Paths, relative to the source, that the missing file may have."""
    if header := _named(_NO_HEADER, message):
        if at := place_of(message.partition("\n")[0]):
            yield join(dirname(at.file.removeprefix(f"{source}/")), header)
        for folder in {each for line in lines for each in _INCLUDE_DIR.findall(line)}:
            yield join(folder.removeprefix(f"{source}/"), header)
    else:
        yield from (word.removeprefix(f"{source}/") for word in _WORD.findall(message) if "/" in word)


def _text(file: Path) -> str:
    if not file.is_file() or file.is_symlink() or file.stat().st_size > _BYTES:
        return ""
    return file.read_text(encoding="utf-8", errors="replace")
