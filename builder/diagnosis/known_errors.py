"""What is known about errors of compilers and other programs (known_errors.yaml), and what to do about one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import islice
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from packaging.utils import canonicalize_name

from builder.diagnosis.first_error import FirstError, place_of
from builder.errors import mask_credentials
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat_table import read_text_yaml

_FILE = Path(__file__).with_name("known_errors.yaml")

#: The keys of the file with errors; an error is looked for in this order.
SECTIONS = ("removed_from_torch", "missing_include", "removed_from_cuda", "compilers", "sources", "outputs", "imports")
#: How gcc, clang and nvcc say that they do not know a name; every quote is written '.
_UNKNOWN_NAME = (
    r"'(?:\w+::)*(?P<name>{names})(?:\(.*\))?'"
    r" (?:was not declared|has not been declared|undeclared|does not name a type|is not a member of)"
    r"|(?:identifier|unknown type name|has no member|has no member named|no member named|no type named"
    r"|implicit declaration of function)"
    r" '(?:\w+::)*(?P<member>{names})'"
)
#: How they say that they do not find a header.
NO_HEADER = (
    r"error: (?P<header>{headers}): No such file or directory|'(?P<clang>{headers})' file not found"
    r"|cannot open source file '(?P<nvcc>{headers})'"
)


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


@dataclass(frozen=True, kw_only=True)
class SourceCure:
    """What removes a cause from a source; the head of known_errors.yaml describes the keys."""

    rewrite: dict[str, str] = field(default_factory=dict)
    include: Sequence[str] = ()
    setup: dict[str, str] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    compile: str = "g++"


@dataclass(frozen=True)
class KnownCause:
    """A known cause in the output of a build."""

    known: KnownError
    groups: dict[str, str]  # what the message named
    error: FirstError


@dataclass(frozen=True, kw_only=True)
class KnownError:
    """An error of compilers whose cause is known."""

    section: str  # the key of the file that the row is below
    about: str  # what the row is about, for people: names, headers, or the text of the file
    forms: tuple[re.Pattern[str], ...] = ()  # they find the error in a message whose quotes are all '
    torch: Torch | None = None  # the release of torch that brought the error, or None
    cuda: Cuda | None = None  # the CUDA version that brought it, or None
    hint: str  # what to do; known names in braces are replaced
    source: str = ""  # how the fact was checked
    id: str = ""  # the name for `reports`, or ""
    cause: str = ""  # why the program fails, one sentence; "" if `hint` says it
    example: str = ""  # a text in which `forms` find the error, or ""
    cure: SourceCure | None = None  # what removes the cause, or None

    def reason(self) -> str:
        """Which release made the change that the cure follows; empty if none did."""
        made = f"torch {self.torch.series}" if self.torch else f"CUDA {self.cuda}" if self.cuda else ""
        return f"{made} removed it" if made and self.section.startswith("removed") else made and f"{made} needs it"


@dataclass(frozen=True)
class Package:
    """What has a header, a library or a CMake package."""

    headers: str  # expression of the paths of its headers
    cmake: str = ""  # cmake, library: the names for `find_package` and `-l`, or ""
    library: str = ""
    debian: str = ""  # debian, dnf, pypi: the package that brings it, or ""
    dnf: str = ""
    pypi: str = ""
    brings: str = ""  # the distribution that `pypi` installs, if its name differs, or ""
    submodule: str = ""  # the name of a project that sources have as a git submodule, or ""


@dataclass(frozen=True)
class Knowledge:
    """The complete file."""

    errors: tuple[KnownError, ...]  # errors with known causes, in the order of the file
    packages: tuple[Package, ...]  # what has which headers, libraries and CMake packages
    modules: dict[str, str]  # Python modules to requirements
    programs: dict[str, str]  # programs to requirements of the package index


@cache
def knowledge() -> Knowledge:
    """The contents of known_errors.yaml. A mistake in it is a bug and raises KeyError, TypeError or ValueError."""
    raw = read_text_yaml(_FILE)
    return Knowledge(
        errors=tuple(_error(section, row) for section in SECTIONS for row in raw[section]),
        packages=tuple(Package(**row) for row in raw["packages"]),
        modules={name: name for name in raw["same_name"].split()} | raw["modules"],
        programs=dict(raw["programs"]),
    )


def plain_quotes(text: str) -> str:
    """A text in which every quote is '."""
    return re.sub('[\u2018\u2019"`]', "'", text)


@cache
def known_error(name: str) -> KnownError:
    """The row of the failure with this id. Raises KeyError for an unknown id."""
    return {error.id: error for error in knowledge().errors}[name]


def reports(name: str, text: str) -> re.Match[str] | None:
    """Where a program reports the failure with this id; None if it does not."""
    return known_error(name).forms[0].search(plain_quotes(text))


def hint_of(name: str) -> str:
    """What to do about the failure with this id."""
    return known_error(name).hint


def _error(section: str, row: dict[str, Any]) -> KnownError:
    if unknown := set(row) - {"names", "headers", "message", *(field.name for field in fields(KnownError))}:
        raise ValueError(f"{_FILE.name}: unknown keys {unknown}")
    about = [f"`{name}`" for name in row.get("names", ())]
    forms = [_UNKNOWN_NAME.replace("{names}", "|".join(row["names"]))] if about else []
    if headers := row.get("headers"):
        forms.append(NO_HEADER.replace("{headers}", headers))
        readable = re.sub(r"\\(.)|\(\?:", r"\1", headers.split("|")[0]).replace(".*", "…").replace("w*", "…")
        about.append(f"`<{readable}>`")
    if message := row.get("message"):
        forms.append(message)
    return KnownError(
        section=section,
        about=row.get("about", ", ".join(about)),
        forms=tuple(map(re.compile, forms)),
        torch=Torch.parse(f"{row['torch']}.0") if "torch" in row else None,
        cuda=Cuda.parse(row["cuda"]) if "cuda" in row else None,
        cure=SourceCure(**row["cure"]) if "cure" in row else None,
        **{key: row[key] for key in ("hint", "source", "id", "cause", "example") if key in row},
    )


def hints_for(
    error: FirstError, torch: Torch, cuda: Cuda, *, container: bool, packages: Sequence[str] = ()
) -> list[str]:
    """What to do about an error in a build for this torch and CUDA; empty if the cause is not known.

    `container` is whether the build runs in a container of an image. `packages` are those of its environment, as exact
    requirements.
    """
    if cause := next(_causes(error, torch, cuda), None):
        return [_hint(cause, torch, cuda)]
    return [hint for hint, _ in islice(_missing(error, cuda, packages, container=container), 1)]


def causes(errors: Iterable[FirstError], torch: Torch, cuda: Cuda, packages: Sequence[str]) -> list[KnownCause]:
    """The known cause of each error of a build that has one; those of different places are different."""
    found: dict[tuple[str, str], KnownCause] = {}
    for error in errors:
        cause = next(_causes(error, torch, cuda), None)
        if not cause and (lacks := next(_missing(error, cuda, packages, container=False), None)) and lacks[1]:
            cure = SourceCure(recipe={"build_requires": [lacks[1]]})
            known = KnownError(section="packages", about="what the build needs", hint=lacks[0], cure=cure)
            cause = KnownCause(known, {}, error)
        if cause:
            found.setdefault((cause.known.hint, error.text), cause)
    return list(found.values())


def removed(torch: Torch, cuda: Cuda) -> list[KnownError]:
    """The rows about what is missing in these releases for certain, also where no compiler has named it yet."""
    rows = (each for each in knowledge().errors if each.section.startswith("removed") and (each.torch or each.cuda))
    return [each for each in rows if _applies(each, torch, cuda)]


def _applies(known: KnownError, torch: Torch, cuda: Cuda) -> bool:
    return not (known.torch and torch < known.torch) and not (known.cuda and cuda < known.cuda)


def _causes(error: FirstError, torch: Torch, cuda: Cuda) -> Iterator[KnownCause]:
    message = plain_quotes(error.message)
    shown = plain_quotes("\n".join((error.message, *error.excerpt)))  # some rows name a macro, which gcc only shows
    for known in (each for each in knowledge().errors if each.section != "imports" and _applies(each, torch, cuda)):
        for form in known.forms:
            if found := form.search(shown if known.section == "missing_include" else message):
                groups = {key: text for key, text in found.groupdict().items() if text}
                name = next((groups[key] for key in ("name", "member", "header", "clang", "nvcc") if key in groups), "")
                yield KnownCause(known, groups | {"name": name}, error)


def _hint(cause: KnownCause, torch: Torch, cuda: Cuda) -> str:
    known, name = cause.known, cause.groups["name"]
    hint = known.hint.format_map(cause.groups | {"torch": torch, "cuda": cuda})
    if known.section == "removed_from_torch" and known.torch and "{torch}" not in known.hint:
        return f"torch {known.torch.series} removed {name or known.about}: {hint}"
    if known.section == "removed_from_cuda" and known.cuda and name:
        return f"CUDA {known.cuda} moved or removed {name}: {hint}"
    return hint


def _named(form: re.Pattern[str], message: str) -> str:
    """What a message says is missing, or empty: the group of the pattern that matches."""
    found = form.search(message)
    return next(filter(None, found.groups())) if found else ""


def _missing(error: FirstError, cuda: Cuda, packages: Sequence[str], *, container: bool) -> Iterator[tuple[str, str]]:
    """Hints for a module, a header, a library, a CMake package or a program that is not there.

    With each the known requirement of the package index that has it, or "".
    """
    knows, message = knowledge(), plain_quotes(error.message)
    installed = {canonicalize_name(package.partition("==")[0]) for package in packages}
    top = _named(_NO_MODULE, message).partition(".")[0]
    if top == "torch":
        yield (
            (
                "the environment of the build has torch, so the source starts a second, isolated build: pass"
                " --no-build-isolation to the pip that it calls"
            ),
            "",
        )
    elif top:
        needs = f"add `{knows.modules.get(top, top)}` to `build_requires` in the recipe: the build needs this module"
        yield needs, knows.modules.get(top, "")
    header, library = _named(_NO_HEADER, message), _named(_NO_LIBRARY, message)
    cmake = _named(_NO_CMAKE_PACKAGE, message)
    for package in knows.packages:
        if header and re.fullmatch(package.headers, header):
            yield _package(package, f"the header {header}", cuda, installed, container=container)
        if library and package.library == library:
            yield _package(package, f"the library {library}", cuda, installed, container=container)
        if cmake and package.cmake.lower() == cmake.lower():
            yield _package(package, cmake, cuda, installed, container=container)
    if requirement := knows.programs.get(program := _named(_NO_PROGRAM, message)):
        calls = f"add `{requirement}` to `build_requires` in the recipe: the build calls the program {program}"
        yield calls, requirement


def _package(package: Package, what: str, cuda: Cuda, installed: Set[str], *, container: bool) -> tuple[str, str]:
    if package.submodule:
        return (
            f"{what} is of {package.submodule}, which is a git submodule of most sources: use the git repository as"
            " `source`, because archives of it have no submodules"
        ), ""
    if package.pypi:
        requirement = package.pypi.format(cuda_major=cuda.major)
        brings = package.brings.format(cuda_major=cuda.major) or canonicalize_name(requirement)
        if brings in installed:
            return (
                f"{what} is in `{brings}`, which is installed, and the compiler does not search its folder: add the"
                " folder to the extension in setup.py with a patch (CUDAExtension of torch adds that of the toolkit)"
            ), ""
        return f"{what} is in `{requirement}`: add it to `build_requires` in the recipe", requirement
    do = "under `images:` in matrix.yaml, name an image that has it" if container else "install it"
    return f"{what} is in `{package.debian}` (Debian, Ubuntu) and `{package.dnf}` (dnf): {do}", ""


def missing_file_hints(message: str, lines: Sequence[str], source: str, tree: Path, origin: Path | None) -> list[str]:
    """What to do if the first error of a build is about a file that its source does not have; often nothing.

    `message` is the complete message, `lines` are the output of the build, with the commands of the compilers. `source`
    is the folder in which the compilers ran, `tree` is where its files are now, and `origin` the folder that they were
    copied from, if the recipe names one.
    """
    text = plain_quotes(message)
    if found := _submodules(text, lines, source, tree, copied=origin is not None):
        return found
    file = normpath(_named(_NO_SOURCE, text).removeprefix(f"{source}/"))
    if not file.endswith(_SUFFIXES) or file.startswith(("/", "..")) or (tree / file).exists():
        return []
    if origin and (origin / file).is_file():
        return [f"buildfarm does not copy {file}: git ignores it, or its folder is one that a build leaves behind"]
    if (tree / file).with_suffix(".pyx").is_file():
        return [f"Cython makes {file} of its .pyx file: add `cython` to `build_requires` in the recipe"]
    return []


def header_hints(message: str, lines: Sequence[str], tree: Path) -> list[str]:
    """What to do if the source includes a header by its quoted name that is elsewhere in it, or nowhere."""
    header = _named(_NO_HEADER, plain_quotes(message))
    if not header or not any(f'#include "{header}"' in line for line in lines):
        return []
    if found := sorted(path.relative_to(tree) for path in tree.rglob(header.rpartition("/")[2]) if path.match(header)):
        folder = found[0].as_posix().removesuffix(header) or "."
        return [f"{header} is in the folder {folder} of the source: add it to `include_dirs` in setup.py with a patch"]
    return [
        f"the source has no file {header}: the archive lacks headers that its MANIFEST.in does not name; use the git"
        " repository of the project as `source`"
    ]


def _submodules(message: str, lines: Sequence[str], source: str, tree: Path, *, copied: bool) -> list[str]:
    """The command that fetches the git submodules in which the missing file would be, if they are empty."""
    modules_file = tree / ".gitmodules"
    readable = modules_file.is_file() and not modules_file.is_symlink() and modules_file.stat().st_size <= _BYTES
    sections = modules_file.read_text(encoding="utf-8", errors="replace").split("[submodule") if readable else []
    modules = {
        found["path"]: found.get("url", "no URL")
        for each in sections
        if "path" in (found := dict(_SETTING.findall(each)))
    }
    wanted = [normpath(each) for each in _possible_paths(message, lines, source)] if modules else []
    lacking = [
        path
        for path in modules
        if not path.startswith(("/", "..")) and not any((tree / path).glob("*"))
        if any(f"{each}/".startswith(f"{normpath(path)}/") for each in wanted)
    ]
    if not lacking:
        return []
    names = " and ".join(f"{path} ({mask_credentials(modules[path])})" for path in lacking)
    are = "are git submodules" if len(lacking) > 1 else "is a git submodule"
    if copied:
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
