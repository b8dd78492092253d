"""Which libraries of a wheel the dynamic loader finds when Python loads another one of them. Nothing is loaded.

A library searches the folders of its DT_RUNPATH. Without one, it searches those of its DT_RPATH, and those of the
libraries that led to it. A library that is loaded already is found by its name (source: glibc, elf/dl-load.c; the order
of the search is that of elf/dl-deps.c).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?=/|$)(?P<rest>[^$]*)")
#: Variables whose values only the machine knows.
_UNKNOWN = re.compile(r"\$\{?(?:LIB|PLATFORM)\b")


class Searching(NamedTuple):
    """What decides the search for a library and by it: its DT_SONAME and DT_NEEDED, and its run path."""

    soname: str
    needed: tuple[str, ...]
    search: tuple[str, ...]
    #: The run path is of DT_RPATH.
    rpath: bool
    #: Python imports the library.
    is_module: bool


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


def unreached(libraries: Mapping[str, Searching]) -> list[Unreached]:
    """The libraries that are not found when Python loads a library alone, by their paths below site-packages.

    Python imports modules. It may load every library that no other one needs.
    """
    holders: dict[str, str] = {}
    for path, one in libraries.items():
        for name in (one.soname, path.rpartition("/")[2]):  # a file of the name wins
            if name:
                holders[name] = path
    wanted = {name for one in libraries.values() for name in one.needed}
    loaded: set[str] = set()
    lost: dict[tuple[str, str], bool] = {}
    for path, one in libraries.items():
        names = {one.soname, path.rpartition("/")[2]}
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
    root: str, libraries: Mapping[str, Searching], holders: Mapping[str, str]
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
