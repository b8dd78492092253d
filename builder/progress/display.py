"""Shows running builds: live lines on a terminal, single lines elsewhere."""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath

import psutil
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from builder.gate.amounts import join_names, size_text
from builder.log import console, print_line, verbosity
from builder.process import complete_lines, log_size

#: Without a terminal, a line is printed at each stage and then at this interval: CI stops silent jobs.
HEARTBEAT_SECONDS = 30.0
#: How often the logs of running builds are read.
READ_SECONDS = 0.25
#: Seconds; shorter stages are not kept.
SHORTEST_STAGE = 0.05
#: Seconds; the time of a shorter stage in the last run is not shown.
SHORTEST_SHOWN = 10.0
#: How a stage begins in which a build does nothing itself: another build or process must end first.
WAITS = "waiting for "

_SOURCE = r"[^\s'\"]+\.(?:c|cc|cpp|cxx|c\+\+|C|cu|s|S|hip)"

#: `ninja` prints the line of a command when the command has finished.
_NINJA = re.compile(r"\[(\d+)/(\d+)\] (.+)")
_COMPILED = re.compile(rf"\s(?:-c|-dc|-dw|--compile|--device-c)\s+(?:-c\s+)?({_SOURCE})(?=['\"\s]|$)")
_CMAKE_OBJECT = re.compile(r"Building \w+ object (\S+)\.o(?:bj)?$")
_UV = re.compile(r"\s*(Resolved|Downloading|Downloaded|Prepared|Installed) (\S+)(?: \(([\d.]+)([KMGT]?)i?B\))?")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
#: The op gate prints a line when it starts a task, and a draft when it has tried an op.
_GATE = re.compile(r"gate: (.+; \d+ tasks? to start|\d+ of \d+ ops?(?:, again)?)$")
_BUILDX = re.compile(r"#\d+ \[(?:\S+ )?(\d+)/(\d+)\] \S")
#: Files that CMake compiles to try a compiler, and the one of buildfarm's own self-test.
_TRIAL = re.compile(r"(?:^|/)CMakeFiles/|/cmake[^/]*/Modules/|/CMakeScratch/|(?:^|/)buildfarm-check\.")


@dataclass(frozen=True)
class StageTime:
    """One stage of one build."""

    #: The name of the build, or of what is tested.
    build: str
    #: The text of the stage, such as `compile`.
    stage: str
    #: start, end: in seconds of a clock.
    start: float
    end: float
    #: The worker that did it; empty: this machine.
    machine: str = ""


@dataclass(frozen=True)
class Timeline:
    """What happened when in one run."""

    #: Of every build, in the order in which they ended; seconds since the start of the run.
    stages: tuple[StageTime, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of the workers; empty for a run on this machine."""
        return tuple(sorted({stage.machine for stage in self.stages if stage.machine}))


class UvSpeed:
    """How many bytes the running uv programs of this process write each second, which they unpack while they load."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        self._text = ""

    def text(self) -> str:
        """`uv unpacks 85 MiB/s`, measured over a second or more; empty while that is unknown."""
        at, written = time.monotonic(), 0
        if self._before and at - self._before[0] < 1:
            return self._text
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                written += process.io_counters().write_chars if process.name() == "uv" else 0
        rate = (written - self._before[1]) / (at - self._before[0]) if self._before else 0
        self._before, self._text = (at, written), f"uv unpacks {size_text(rate)}/s" if rate > 0 else ""
        return self._text


@dataclass
class FileCount:
    """The files of one build that are compiled: the launcher names them, and ninja, uv and buildx count."""

    _done: int = 0
    _total: int = 0
    _earlier: int = 0  # files of the earlier ninja runs of this build: setuptools starts one for each extension
    _called: list[str] = field(default_factory=list)
    _finished: Counter[str] = field(default_factory=Counter)
    _last: str = ""  # the file that was finished last
    _step: str = ""
    _loading: dict[str, float] = field(default_factory=dict)  # packages that uv downloads, and their bytes
    _loaded: float = 0  # bytes of packages that are complete
    _speed: UvSpeed = field(default_factory=UvSpeed)

    def read(self, line: str) -> None:
        """Read one line of the build's output."""
        if match := _NINJA.match(line):
            self._read_ninja(int(match[1]), int(match[2]), match[3])
        elif (match := _UV.match(line)) and match[1] == "Downloading":
            self._loading[match[2]] = float(match[3] or 0) * _UNITS[match[4] or ""]
        elif match and match[1] == "Downloaded":
            self._loaded += self._loading.pop(match[2], 0)
        elif match:  # what uv did with all packages
            self._loading, self._loaded = {}, 0
        elif match := _GATE.match(line):
            self._step = f"({match[1]})"
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
        if self._loading:
            names = sorted(self._loading, key=lambda name: -self._loading[name])
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            total = self._loaded + sum(self._loading.values())
            text = f"download {size_text(self._loaded)} of {size_text(total)}: {names[0]}{more}"
            return ", ".join(filter(None, (text, self._speed.text())))
        count = f"file {len(self._called)}" if self._called else ""
        running = [self._last] if self._last else self._called[-1:]
        if self._total:
            count = f"{self._earlier + self._done} of {self._earlier + self._total}"
            if self._called:
                running = list((Counter(self._called) - self._finished).elements())
        return ": ".join(part for part in (count, join_names(running, 2)) if part) or self._step


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03` below one hour."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


@dataclass
class _Line:
    name: str
    log: Path | None
    now: Callable[[], float]
    stage: str = "waiting"
    machine: str = ""
    started: float = 0.0
    stage_started: float = 0.0
    printed: float = 0.0  # when the last line was printed
    files: FileCount = field(default_factory=FileCount)
    offset: int = 0  # of the part of the log that was read
    calls: Path | None = None  # of the compiler launcher: the path of a source file in each line
    calls_offset: int = 0
    expected: float = 0.0  # seconds that this stage took in the last run; 0 if unknown
    waited: float = 0.0  # seconds of the stages that have ended in which the build waited

    def __post_init__(self) -> None:
        self.started = self.stage_started = self.now()
        if self.log is not None:
            self.offset = log_size(self.log)

    def end_stage(self) -> StageTime:
        """The stage that ends now."""
        ended = StageTime(self.name, self.stage, self.stage_started, self.now(), self.machine)
        self.waited += ended.end - ended.start if self.stage.startswith(WAITS) else 0
        self.stage_started = ended.end
        return ended

    def state(self) -> str:
        """`compile 17 of 46: rasterize.cu (2:10; this step took 3:05 last time)`."""
        files = self.files.text()
        last = f"; this step took {clock(self.expected)} last time" if self.expected >= SHORTEST_SHOWN else ""
        elapsed = f"({clock(self.now() - self.started)}{last})"
        place = f"on {self.machine}" if self.machine else ""
        return " ".join(part for part in (self.stage, files, elapsed, place) if part)

    def read(self) -> list[str]:
        """Read what the log and the launcher's file have gained; returns the new lines of the log."""
        lines: list[str] = []
        if self.log is not None:
            lines, self.offset = complete_lines(self.log, self.offset)
        lines = [] if self.stage.startswith(WAITS) else lines  # those of the process that this one waits for
        for line in lines:
            self.files.read(line)
        if self.calls is not None:
            sources, self.calls_offset = complete_lines(self.calls, self.calls_offset)
            for source in sources:
                self.files.read_call(source)
        return lines


class Progress:
    """Shows each build: name, stage, the files that are compiled, and the elapsed time.

    Nothing is printed while `_lock` is held: rich draws the live lines at each print, and `__rich__` takes the lock.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, last: Callable[[], Mapping[tuple[str, str], float]] = dict
    ) -> None:
        """`now` is the clock, in seconds. `last` reads the seconds of each build and stage in an earlier run, once."""
        self._now = now
        self._started = now()
        self._last = cache(last)
        self._lines: dict[str, _Line] = {}
        self._stages: list[StageTime] = []
        self._lock = threading.Lock()

    def start(self, name: str, log: Path | None = None) -> None:
        """Add a build; `log` is the file with the output of its programs."""
        with self._lock:
            self._lines[name] = _Line(name, log, self._now)

    def read_calls(self, name: str, calls: Path) -> None:
        """Say where the compiler launcher lists its calls for a build."""
        with self._lock:
            self._lines[name].calls = calls

    def stage(self, name: str, stage: str, machine: str = "") -> None:
        """Show the stage that a build has reached, and the worker that runs it; empty: this machine."""
        with self._lock:
            line = self._lines.setdefault(name, _Line(name, None, self._now))
            texts = self._read(line)
            self._stages.append(line.end_stage())
            line.stage, line.machine = stage, machine
            line.expected = self._last().get((name, stage), 0.0)
            line.files = FileCount()
            texts += self._state(line)
        _print(texts)

    def finish(self, name: str, outcome: str) -> float:
        """Show the outcome of a build: `built`, `failed`, …; nothing if it is empty. Returns its seconds of work."""
        with self._lock:
            line = self._lines.pop(name, None) or _Line(name, None, self._now)
            texts = self._read(line)
            self._stages.append(line.end_stage())
        work = line.stage_started - line.started - line.waited
        _print(texts)
        if outcome:
            waited = f", after {clock(line.waited)} of waiting" if line.waited >= 1 else ""
            print_line(f"{name}: {outcome} in {clock(work)}{waited}")
        return work

    @contextmanager
    def part(self, name: str, part: str) -> Iterator[tuple[Path, Callable[[str], None]]]:
        """Show a part of a build in a line `NAME in PART`; yield the log of the part, and what shows its stages.

        When the part has ended, its log is appended to that of the build: those of parallel parts do not mix.
        """
        with self._lock:
            log = self._lines[name].log or Path(os.devnull)
        line, own = f"{name} in {part}", log.with_name(f"{log.stem}-{part}.log")
        own.write_bytes(b"")
        self.start(line, own)
        try:
            yield own, lambda stage: self.stage(line, stage.removesuffix(f" in {part}"))
        finally:
            with self._lock:
                ended = self._lines.pop(line)
                texts = [*self._read(ended), *self._read(self._lines[name])]
                self._stages.append(ended.end_stage())
                with suppress(OSError):  # on a full disk the log of the part stays
                    with log.open("ab") as whole:
                        whole.write(own.read_bytes())
                    own.unlink()
                self._lines[name].offset = log_size(log)  # `--verbose` has printed these lines
            _print(texts)

    def timeline(self) -> Timeline:
        """The stages that have ended, without those too short to see."""
        begin = self._started
        with self._lock:
            seen = [each for each in self._stages if each.end - each.start >= SHORTEST_STAGE]
        return Timeline(tuple(replace(s, start=round(s.start - begin, 2), end=round(s.end - begin, 2)) for s in seen))

    def states(self) -> dict[str, str]:
        """What each running build does now, such as `compile 17 of 46: rasterize.cu`, without times."""
        with self._lock:
            return {line.name: " ".join(filter(None, (line.stage, line.files.text()))) for line in self._lines.values()}

    def _state(self, line: _Line) -> list[str]:
        """The line to print now: none on a terminal, which shows live lines."""
        if console.is_terminal:
            return []
        line.printed = self._now()
        return [f"{line.name}: {line.state()}"]

    def _read(self, line: _Line) -> list[str]:
        """Read what the log has gained; return what `--verbose` prints of it."""
        new = line.read()
        return [f"{line.name} | {text}" for text in new] if verbosity.verbose else []

    def _follow(self) -> None:
        """Read the logs, and print a line for each build whose last line is old."""
        texts: list[str] = []
        with self._lock:
            for line in self._lines.values():
                texts += self._read(line)
                if line.printed and self._now() - line.printed >= HEARTBEAT_SECONDS:
                    texts += self._state(line)
        _print(texts)

    def __rich__(self) -> Table:
        """Return the table that rich draws at each refresh: one line for each running build."""
        table = Table.grid(padding=(0, 2))
        with self._lock:
            for line in self._lines.values():
                table.add_row(escape(line.name), f"[cyan]{escape(line.state())}[/]")
        return table

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the builds while the body runs: live lines on a terminal, else single lines."""
        with repeated(self._follow, READ_SECONDS):
            if console.is_terminal and not verbosity.quiet:
                with Live(self, console=console, refresh_per_second=4):
                    yield
            else:
                yield


@contextmanager
def repeated(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` in a thread while the body runs, each time after so many seconds."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _print(texts: Iterable[str]) -> None:
    for text in texts:
        print_line(text)
