"""Libraries that a wheel needs and that neither the wheel, torch nor a manylinux system has, but that may be absent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from packaging.utils import canonicalize_name

from builder.proofs.static.claim import join_names
from builder.proofs.static.metadata import read_requirement
from builder.proofs.static.tags import system_libraries
from builder.wheelfile.archive import WheelContents
from builder.wheelfile.driver import is_driver_library
from builder.wheelfile.facts import Library, WheelFacts

#: Libraries that are not named after their project.
_PROJECTS = {"nvinfer": "tensorrt", "nvonnxparser": "tensorrt"}
#: Bytes of a Python file, and of all, that are searched for imports. Characters of a name that may name a project.
_MAX_SOURCE, _MAX_SOURCES, _MIN_STEM = 2**20, 2**28, 4


@dataclass(frozen=True)
class Outside:
    """The libraries of a wheel that need something from outside of it."""

    #: Its Python files say which libraries are imported.
    wheel: WheelContents
    #: Of the wheel.
    facts: WheelFacts
    #: Names of the libraries that torch and its NVIDIA packages provide.
    provided: frozenset[str]

    @cached_property
    def others(self) -> dict[str, str]:
        """The project in METADATA that has a needed library, by the name of the library.

        A project has a library if the name of one begins with that of the other: metatensor-core has
        `libmetatensor.so`.
        """
        required = (read_requirement(line) for line in self.facts.requires_dist)
        projects = [canonicalize_name(one.name).replace("-", "_") for one in required if one]
        found = {}
        for name in self._absent:
            stem = name.partition(".so")[0].removeprefix("lib").replace("-", "_").lower()
            for project in projects:
                same = any(project.startswith(one) or one.startswith(project) for one in (stem, *_other_names(stem)))
                if project != "torch" and len(stem) >= _MIN_STEM and same:
                    found[name] = project
        return found

    @cached_property
    def optional(self) -> dict[str, list[str]]:
        """Needed libraries without which the package works, each with the wheel's libraries that need it.

        These are libraries that no unindented line of a Python file names: a function or `try` may load them, if the
        system has what they need. Some library of the wheel must work without them.
        """
        users = {name: self._users(name) for name in self._absent if name not in self.others}
        lazy = {name: used for name, used in users.items() if self._imported.isdisjoint(map(_stem, used))}
        affected = {library.path for used in lazy.values() for library in used}
        own = {library.path for library in self.facts.libraries if not library.foreign}
        if own <= affected:
            return {}
        return {name: [library.path for library in used] for name, used in lazy.items()}

    def remarks(self) -> Iterator[str]:
        """What to say about both kinds."""
        for name, project in self.others.items():
            yield f"{name} must come from {project}, which METADATA requires"
        by_users: dict[tuple[str, ...], list[str]] = {}
        for name, used in self.optional.items():
            by_users.setdefault(tuple(used), []).append(name)
        for users, names in by_users.items():
            yield f"{join_names(users)} can be loaded only where the system has {join_names(names)}"

    @cached_property
    def _absent(self) -> list[str]:
        inside = {name for library in self.facts.libraries for name in (library.basename, library.soname)}
        known = inside | self.provided
        return sorted(
            {
                name
                for library in self.facts.libraries
                for name in library.needed
                if name not in known | system_libraries(library.machine) and not is_driver_library(name)
            }
        )

    def _users(self, name: str) -> list[Library]:
        """The libraries that need a library, directly or through other libraries of the wheel."""
        names, used = {name}, dict[str, Library]()
        while more := [one for one in self.facts.libraries if one.path not in used and names & set(one.needed)]:
            used |= {one.path: one for one in more}
            names |= {text for one in more for text in (one.basename, one.soname) if text}
        return list(used.values())

    @cached_property
    def _imported(self) -> frozenset[str]:
        """The names of libraries, up to the first dot, in unindented lines of Python files: these lines always run.

        If the Python files are larger than any real package, every library counts as imported.
        """
        stems = {_stem(library) for name in self._absent for library in self._users(name)}
        found, left = set[str](), _MAX_SOURCES
        for name in self.wheel.names:
            if name.endswith(".py") and stems:
                with self.wheel.open(name) as stream:
                    source = stream.read(_MAX_SOURCE)
                left -= len(source)
                if left < 0:
                    return frozenset(stems)
                found |= {stem for stem in stems if stem.encode() in source and _always_named(stem, source)}
        return frozenset(found)


def _other_names(stem: str) -> Iterator[str]:
    """The project of a library whose name begins differently."""
    yield from (project for library, project in _PROJECTS.items() if stem.startswith(library))


def _stem(library: Library) -> str:
    return library.basename.partition(".")[0]


def _always_named(stem: str, source: bytes) -> bool:
    """Whether an unindented statement names a library; `from . import (` may have its names in the next lines."""
    word = re.compile(rb"(?<!\w)" + re.escape(stem.encode()) + rb"(?!\w)")
    within = False
    for line in source.splitlines():
        within = within and b")" not in line
        if line[:1].strip() and not line.startswith(b"#"):
            within = line.startswith(b"from ") and b"(" in line and b")" not in line
            if word.search(line):
                return True
        elif within and word.search(line):
            return True
    return False
