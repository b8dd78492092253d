"""How far a build is, read from the output of its tools: ninja, make, setuptools, uv and docker buildx."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_SOURCE = r"[^\s'\"]+\.(?:c|cc|cpp|cxx|c\+\+|C|cu|s|S|hip)"

#: `ninja` prints the line of a command when the command has finished.
_NINJA = re.compile(r"\[(\d+)/(\d+)\] (.+)")
#: CMake's makefiles print the line of a command when the command starts.
_MAKE = re.compile(r"\[ {0,2}(\d+)%\] (Building|Linking) \w+ .*?([^\s/]+)$")
#: setuptools prints each command before it runs it.
_SETUPTOOLS = re.compile(r"\S*?(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|nvcc)(?:-\d+)? .*\s-c\s")
_COMPILED = re.compile(rf"\s(?:-c|-dc|-dw|--compile|--device-c)\s+(?:-c\s+)?({_SOURCE})(?=['\"\s]|$)")
_CMAKE_OBJECT = re.compile(r"Building \w+ object (\S+)\.o(?:bj)?$")
_UV = re.compile(r"\s*((?:Resolved|Downloading|Prepared|Installed) .+)")
_BUILDX = re.compile(r"#\d+ \[(?:\S+ )?(\d+)/(\d+)\] \S")
#: Files that CMake compiles to try a compiler, and the one of buildfarm's own self-test.
_TRIAL = re.compile(r"(?:^|/)CMakeFiles/|/cmake[^/]*/Modules/|/CMakeScratch/|(?:^|/)buildfarm-check\.")


@dataclass
class FileCount:
    """The files of one build that are compiled and that are being compiled."""

    _done: int = 0
    _total: int = 0
    _earlier: int = 0  # files of the earlier ninja runs of this build: setuptools starts one for each extension
    _percent: str = ""
    _started: list[str] = field(default_factory=list)
    _called: list[str] = field(default_factory=list)
    _finished: Counter[str] = field(default_factory=Counter)
    _last: str = ""  # the file that was finished last
    _step: str = ""

    def read(self, line: str) -> None:
        """Read one line of the build's output."""
        if match := _NINJA.match(line):
            self._read_ninja(int(match[1]), int(match[2]), match[3])
        elif match := _MAKE.match(line):
            self._percent = f"{match[1]}%"
            self._started.append(match[3].removesuffix(".o") if match[2] == "Building" else f"linking {match[3]}")
        elif _SETUPTOOLS.match(line) and (compiled := _COMPILED.search(line)) and not _TRIAL.search(compiled[1]):
            self._started.append(PurePosixPath(compiled[1]).name)
        elif match := _UV.match(line):
            self._step = match[1]
        elif match := _BUILDX.match(line):
            self._step = f"step {match[1]} of {match[2]} of the image"

    def read_call(self, source: str) -> None:
        """Read the path of a source file that a compiler was called for (`launch.sh`)."""
        if not _TRIAL.search(source):
            self._called.append(PurePosixPath(source).name)

    def _read_ninja(self, done: int, total: int, rest: str) -> None:
        if total != self._total or done < self._done:
            self._earlier += self._done
        self._done, self._total = done, total
        if match := _COMPILED.search(f" {rest}") or _CMAKE_OBJECT.match(rest):
            self._last = PurePosixPath(match[1]).name
            self._finished[self._last] += 1

    def text(self) -> str:
        """`17 of 46: rasterize.cu`, or what is known of it; empty when nothing is known."""
        names = self._running()
        shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        return ": ".join(part for part in (self._count(), shown) if part) or self._step

    def _count(self) -> str:
        if self._total:
            return f"{self._earlier + self._done} of {self._earlier + self._total}"
        if self._percent:
            return self._percent
        started = max(len(self._started), len(self._called))
        return f"file {started}" if started else ""

    def _running(self) -> list[str]:
        """Names of the files that are being compiled, or of the last one that is known."""
        if self._total:
            if self._called:
                return list((Counter(self._called) - self._finished).elements())
            return [self._last] if self._last else []
        return (self._called if len(self._called) > len(self._started) else self._started)[-1:]
