"""What the object cache spared a build, file by file, read from sccache's log."""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

#: How the compiled languages are told from a file's name; what is none of them is no source.
_LANGUAGES = {
    ".c": "C",
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".C", ".cp"), "C++"),
    ".cu": "CUDA",
    **dict.fromkeys((".s", ".S", ".sx"), "assembly"),
}

#: Sources by which CMake and the farm try a compiler: no object of the wheel.
_TRIALS = re.compile(r"(?:^|/)CMakeFiles/|/cmake[^/]*/Modules/|(?:^|/)buildfarm-check\.")

_LINE = re.compile(r"^\[\S+ DEBUG sccache::[\w:]+\] (.*)$")
_BEGUN = re.compile(r"^\[(.+?)\]: get_cached_or_compile: (\[.*\])$")
_ENDED = re.compile(r"^\[(.+?)\]: compile result: (.+)$")
_REFUSED = re.compile(r"^parse_arguments: CannotCache\((.*?)\): (\[.*\])$")
_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Outcome(StrEnum):
    """Whether the cache spared a compile."""

    REUSED = "reused"
    PARTLY = "partly reused"
    COMPILED = "compiled"
    NOT_CACHED = "not cached"


@dataclass(frozen=True)
class Reuse:
    """One source file of a build, and where its object came from.

    Attributes:
        name: its path, relative to the source tree where it lies there.
        language: `C`, `C++`, `CUDA` or `assembly`.
        outcome: whether the cache had it.
        detail: of a CUDA source how many of its steps were reused; why it was not cached; else empty.

    """

    name: str
    language: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Objects:
    """What the object cache did for one build.

    Attributes:
        files: each compiled source file, sorted by name.
        refused: why the cache was not used at all, or empty.

    """

    files: tuple[Reuse, ...] = ()
    refused: str = ""

    def named(self, outcome: Outcome) -> list[str]:
        """Names of the files with that outcome."""
        return [file.name for file in self.files if file.outcome is outcome]

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the store's record and report.json."""
        told = [
            {"name": file.name, "language": file.language, "outcome": str(file.outcome)}
            | ({"detail": file.detail} if file.detail else {})
            for file in self.files
        ]
        return {"files": told} | ({"refused": self.refused} if self.refused else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Objects:
        """Read what `to_json` wrote; raises KeyError or ValueError on anything else."""
        files = (Reuse(f["name"], f["language"], Outcome(f["outcome"]), f.get("detail", "")) for f in data["files"])
        return cls(tuple(files), data.get("refused", ""))

    def sentence(self) -> str:
        """One line for a person: how much was reused, and which files."""
        if self.refused:
            return f"object cache not used: {self.refused}"
        parts = []
        for outcome in Outcome:
            if names := self.named(outcome):
                shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
                parts.append(f"{len(names)} {outcome} ({shown})")
        return f"objects: {'; '.join(parts)}" if parts else "objects: none compiled"


def read_objects(told: Path, root: str) -> Objects | None:
    """What a build's cache left in its folder; None where no cache was asked for.

    `root` is the source tree's path as the compilers saw it.
    """
    try:
        return Objects(refused=(told / "refused").read_text().strip() or "it did not start")
    except FileNotFoundError:
        pass
    try:
        log = (told / "server.log").read_text(errors="replace")
    except FileNotFoundError:
        return None
    return Objects(tuple(_files(log, root)))


@dataclass
class _Unit:
    """One source file, while its compile is followed through the log."""

    source: str
    object: str
    steps: list[bool] = field(default_factory=list)
    ended: str = ""
    why: str = ""


def _files(log: str, root: str) -> Iterator[Reuse]:
    told: dict[str, Reuse] = {}
    for unit in _units(log):
        name = unit.source.removeprefix(f"{root.rstrip('/')}/").removeprefix("./")
        language = _LANGUAGES.get(PurePosixPath(name).suffix, "C++")
        if not _TRIALS.search(name):
            told[name] = Reuse(name, language, *_outcome(unit))
    return iter(sorted(told.values(), key=lambda file: file.name))


def _outcome(unit: _Unit) -> tuple[Outcome, str]:
    if unit.why:
        return Outcome.NOT_CACHED, unit.why
    if unit.steps:  # nvcc's: each of its programs has a result of its own
        if all(unit.steps):
            return Outcome.REUSED, ""
        if any(unit.steps):
            return Outcome.PARTLY, f"{sum(unit.steps)} of {len(unit.steps)} steps"
        return Outcome.COMPILED, ""
    if unit.ended in ("cache hit", "cache miss"):
        return (Outcome.REUSED if unit.ended == "cache hit" else Outcome.COMPILED), ""
    return Outcome.NOT_CACHED, unit.ended or "it did not end"


def _units(log: str) -> list[_Unit]:
    """Each compile the server was asked for, with its results, from the server's log (sccache 0.16, level debug).

    The log names objects by their file names alone. A step of nvcc is given to its source by the source's path, which
    cudafe++ and cicc are told, or by the object's; results come to the first that waits for one under that name.
    """
    units: list[_Unit] = []
    waiting: dict[str, deque[tuple[_Unit, bool]]] = {}
    for line in log.splitlines():
        if not (said := _LINE.match(line)):
            continue
        if begun := _BEGUN.match(said[1]):
            arguments = _arguments(begun[2])
            unit, step = _unit_of(begun[1], arguments, units)
            waiting.setdefault(begun[1], deque()).append((unit, step))
        elif ended := _ENDED.match(said[1]):
            queue = waiting.get(ended[1], deque())
            # An nvcc as a whole is never cached, and its last step has the same name and ends before it.
            whole = ended[2] == "not cacheable"
            found = next((w for w in queue if (not w[1] and w[0].source.endswith(".cu")) == whole), None)
            if found := found or next(iter(queue), None):
                queue.remove(found)
                if found[1]:
                    found[0].steps.append(ended[2] == "cache hit")
                else:
                    found[0].ended = ended[2]
        elif refused := _REFUSED.match(said[1]):
            arguments = _arguments(refused[2])
            if source := _source(arguments):
                units.append(_Unit(source, "", why=f"sccache: {refused[1]}"))
    return units


def _unit_of(name: str, arguments: list[str], units: list[_Unit]) -> tuple[_Unit, bool]:
    """The unit a compile belongs to, made if it is a new one, and whether it is a step of nvcc."""
    kernels = [unit for unit in reversed(units) if unit.source.endswith(".cu") and not unit.ended]
    if source := _after("--orig_src_path_name", arguments):
        for unit in kernels:
            if source.endswith(unit.source.removeprefix("./")):
                return unit, True
    if any(argument.endswith(".cudafe1.cpp") for argument in arguments):
        for unit in kernels:
            if unit.object == _after("-o", arguments):
                return unit, True
    if name.endswith((".cubin", ".ptx")):
        for unit in kernels:
            # nvcc calls them after the source, with -objtemp after the object.
            if name.startswith(tuple(f"{PurePosixPath(path).stem}." for path in (unit.source, unit.object))):
                return unit, True
    unit = _Unit(_source(arguments) or name, _after("-o", arguments))
    units.append(unit)
    return unit, False


def _source(arguments: list[str]) -> str:
    before = ["", *arguments]
    taken = ("-o", "-MF", "-MT", "-MQ", "-include", "--dependency-output")
    named = (a for b, a in zip(before, arguments, strict=False) if b not in taken and not a.startswith("-"))
    return next((argument for argument in named if PurePosixPath(argument).suffix in _LANGUAGES), "")


def _after(option: str, arguments: list[str]) -> str:
    return next((after for before, after in itertools.pairwise(arguments) if before == option), "")


def _arguments(text: str) -> list[str]:
    return [_unescaped(argument) for argument in _ARGUMENT.findall(text)]


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:  # Rust's escapes that JSON has not, such as \u{e9}
        return text
