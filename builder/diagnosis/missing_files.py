"""What to do about a file that a build misses: a misspelt source file, an empty git submodule."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from posixpath import basename, dirname, join, normpath

from builder.diagnosis.first_error import place_of
from builder.diagnosis.known_errors import NO_HEADER, plain_quotes

_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cxx")
#: ninja, the compiler proper and CMake about a source file that does not exist.
_NO_SOURCE = re.compile(
    r"ninja: error: '(?P<ninja>[^']+)',.* missing and no known rule"
    r"|^cc1(?:plus)?: fatal error: (?P<compiler>\S+): No such file"
    r"|Cannot find source file:\s+(?P<cmake>\S+)"
)
_NO_HEADER = re.compile(NO_HEADER.replace("{headers}", r"[^\s:']+"))
#: Files that list the source files of an extension.
_LISTS = ("setup.py", "pyproject.toml", "CMakeLists.txt", "meson.build")
_INCLUDE_DIR = re.compile(r"(?<!\S)(?:-I ?|-isystem ?)(\S+)")
_SUBMODULE = re.compile(r"^\s*path\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_WORD = re.compile(r"[\w.+/-]+")
#: Files of a source whose names are read, and bytes of a file.
_MOST, _BYTES = 20_000, 1 << 20


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
    return _submodules(message, lines, place) or _misspelt(message, place)


def _misspelt(message: str, place: SourceTree) -> list[str]:
    found = _NO_SOURCE.search(plain_quotes(message))
    if not found:
        return []
    file = normpath(next(filter(None, found.groups())).removeprefix(f"{place.source}/"))
    if not file.endswith(_SUFFIXES) or file.startswith(("/", "..")) or (place.tree / file).exists():
        return []
    if place.origin and (place.origin / file).is_file():
        return [f"buildfarm does not copy {file}: git ignores it, or its folder is one that a build leaves behind"]
    if (place.tree / file).with_suffix(".pyx").is_file():
        return [f"Cython makes {file} of its .pyx file: add `cython` to `build_requires` in the recipe"]
    by = next((name for name in _LISTS if basename(file) in _text(place.tree / name)), "the build")
    names = list(_source_names(place.tree))
    near = [name for name in names if basename(name) == basename(file)] or get_close_matches(file, names, 1, 0.8)
    return [f"{by} names {file}, which does not exist{f' (there is {near[0]})' if near else ''}"]


def _submodules(message: str, lines: Sequence[str], place: SourceTree) -> list[str]:
    """The command that fetches the git submodules in which the missing file would be, if they are empty."""
    empty = [
        path
        for path in _SUBMODULE.findall(_text(place.tree / ".gitmodules"))
        if not path.startswith(("/", "..")) and not _has_files(place.tree / path)
    ]
    wanted = [normpath(each) for each in _missing(message, lines, place.source)] if empty else []
    lacking = [path for path in empty if any(f"{each}/".startswith(f"{normpath(path)}/") for each in wanted)]
    if not lacking:
        return []
    names, are = " and ".join(lacking), "are git submodules" if len(lacking) > 1 else "is a git submodule"
    if place.origin:
        return [f"{names} {are}, and there are no files in it: `git submodule update --init {' '.join(lacking)}`"]
    return [f"{names} {are}, which the source does not contain: use the git repository as `source`"]


def _missing(message: str, lines: Sequence[str], source: str) -> Iterator[str]:
    """Paths, relative to the source, that the missing file may have."""
    text = plain_quotes(message)
    if found := _NO_HEADER.search(text):
        header = next(filter(None, found.groups()))
        if at := place_of(message.partition("\n")[0]):
            yield join(dirname(at.file.removeprefix(f"{source}/")), header)
        for folder in {each for line in lines for each in _INCLUDE_DIR.findall(line)}:
            yield join(folder.removeprefix(f"{source}/"), header)
    else:
        yield from (word.removeprefix(f"{source}/") for word in _WORD.findall(text) if "/" in word)


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _source_names(tree: Path) -> Iterator[str]:
    seen = 0
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "build"]
        for name in names:
            if name.endswith(_SUFFIXES):
                yield Path(folder, name).relative_to(tree).as_posix()
        if (seen := seen + len(names)) > _MOST:
            return


def _text(file: Path) -> str:
    """A file of the source, or "" if it is none or large."""
    if not file.is_file() or file.is_symlink() or file.stat().st_size > _BYTES:
        return ""
    return file.read_text(encoding="utf-8", errors="replace")
