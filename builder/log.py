"""Talk to a person on stderr: steps, hints, live lines. stdout belongs to data."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from builder.errors import FarmError

#: Without a terminal a line is printed at each stage and then at this interval, so that a CI log never looks dead.
HEARTBEAT_SECONDS = 30.0

console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)  # `:x:` stays what it is


def say(text: str) -> None:
    """One plain line to the person."""
    console.print(escape(text))


def warn(text: str) -> None:
    """One line that a person should not miss."""
    console.print(f"[yellow]warning:[/] {escape(text)}")


def complain(error: FarmError, *, who: Sequence[str] = ()) -> None:
    """An error as its sentence and its hints, behind the names of the builds it stopped, if any."""
    about = "" if not who else f"{who[0]}: " if len(who) == 1 else f"{who[0]} and {len(who) - 1} more: "
    console.print(f"[red]error:[/] {escape(about)}{escape(str(error))}")
    for hint in error.hints:
        console.print(f"  [cyan]hint:[/] {escape(hint)}")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@dataclass
class _Line:
    name: str
    log: Path | None = None
    stage: str = "waiting"
    started: float = field(default_factory=time.monotonic)
    spoke: float = 0.0
    done: str = ""
    begin: int = 0  # what the log held before this run

    def __post_init__(self) -> None:
        if self.log is not None and self.log.exists():
            self.begin = self.log.stat().st_size

    def tail(self) -> str:
        """The last line of the build's log, so that a person sees movement."""
        if self.done or self.log is None or not self.log.exists():
            return ""
        with self.log.open("rb") as stream:
            end = stream.seek(0, 2)
            begin = self.begin if end >= self.begin else 0  # else it was begun anew
            stream.seek(max(begin, end - 400))
            lines = stream.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:90] if lines else ""


class Progress:
    """Live lines, one per build: name, stage, elapsed time and the last line of its log."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def start(self, name: str, log: Path | None = None) -> None:
        """A build begins; its log is shown as it grows."""
        with self._lock:
            self._lines[name] = _Line(name, log)

    def stage(self, name: str, stage: str) -> None:
        """A build enters a stage."""
        with self._lock:
            line = self._lines[name]
            line.stage = stage
            self._tell(line, tail="")

    def finish(self, name: str, outcome: str) -> None:
        """A build ended: `built`, `failed`, …"""
        with self._lock:
            line = self._lines[name]
            line.done = f"{outcome} in {_clock(time.monotonic() - line.started)}"
            if not console.is_terminal:
                say(f"{line.name}: {line.done}")

    def _tell(self, line: _Line, *, tail: str) -> None:
        if console.is_terminal:
            return
        line.spoke = time.monotonic()
        elapsed = _clock(line.spoke - line.started)
        say(f"{line.name}: {line.stage} ({elapsed}){f'  {tail}' if tail else ''}")

    def _beat(self) -> None:
        while not self._stop.wait(min(1.0, HEARTBEAT_SECONDS)):
            now = time.monotonic()
            with self._lock:
                for line in self._lines.values():
                    if not line.done and line.spoke and now - line.spoke >= HEARTBEAT_SECONDS:
                        self._tell(line, tail=line.tail())

    def __rich__(self) -> Table:
        """The live table, drawn anew at each refresh."""
        table = Table.grid(padding=(0, 2))
        with self._lock:
            for line in self._lines.values():
                state = line.done or f"{line.stage} {_clock(time.monotonic() - line.started)}"
                colour = "red" if line.done.startswith("failed") else "green" if line.done else "cyan"
                table.add_row(escape(line.name), f"[{colour}]{escape(state)}[/]", f"[dim]{escape(line.tail())}[/]")
        return table

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the lines while the body runs."""
        if console.is_terminal:
            with Live(self, console=console, refresh_per_second=4):
                yield
            return
        beat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        beat.start()
        try:
            yield
        finally:
            self._stop.set()
            beat.join()
