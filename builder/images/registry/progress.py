"""Progress of a pull: the events of the engine, counted in bytes, and how they are shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from builder.log import console, print_line
from builder.progress.display import clock

#: Without a terminal, a line is printed at this interval, seconds.
LINE_SECONDS = 10.0


class PullProgress:
    """How much of an image was downloaded, from the events that the engine sends for each layer."""

    def __init__(self, size: int | None) -> None:
        """`size` is the size of all layers in bytes, or None: then only the layers that have begun are counted."""
        self._size = size
        self._status: dict[str, str] = {}
        self._bytes: dict[str, tuple[int, int]] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one event into account."""
        layer, status = event.get("id"), str(event.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        self._status[layer] = status
        if status == "Downloading":
            detail = event.get("progressDetail") or {}
            self._bytes[layer] = int(detail.get("current", 0)), int(detail.get("total", 0))
        elif layer in self._bytes and status in ("Verifying Checksum", "Download complete"):
            self._bytes[layer] = (self._bytes[layer][1],) * 2

    @property
    def downloaded(self) -> int:
        """Bytes of the layers that have arrived."""
        return sum(current for current, _ in self._bytes.values())

    @property
    def total(self) -> int:
        """Bytes of all layers."""
        return max(self._size or 0, sum(total for _, total in self._bytes.values()))

    @property
    def phase(self) -> str:
        """What the engine does now: `downloading`, `unpacking`, or `retrying in 5 seconds`."""
        states = self._status.values()
        if retries := [status for status in states if status.startswith("Retrying")]:
            return retries[-1].lower()
        if any(status in ("Pulling fs layer", "Downloading", "Waiting") for status in states):
            return "downloading"
        return "unpacking" if states else "asking the registry"


@contextmanager
def shown(image: str, progress: PullProgress, now: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Show a pull while the body runs: a bar on a terminal, else single lines; at the end what was pulled.

    `now` is the clock, in seconds.
    """
    started, stop = now(), threading.Event()

    def elapsed() -> str:
        return clock(now() - started)

    # Only one live display at a time: a pull in another thread belongs to a build, whose line is already live.
    live = console.is_terminal and threading.current_thread() is threading.main_thread()
    show = _bar if live else partial(_lines, elapsed)
    thread = threading.Thread(target=show, args=(image, progress, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    print_line(f"pulled {image} ({decimal(progress.total)}, {elapsed()})")


def _lines(elapsed: Callable[[], str], image: str, progress: PullProgress, stop: threading.Event) -> None:
    while not stop.wait(LINE_SECONDS):
        amount = f"{decimal(progress.downloaded)} of {decimal(progress.total)}"
        print_line(f"{image}: {amount}, {progress.phase} ({elapsed()})")


def _bar(image: str, progress: PullProgress, stop: threading.Event) -> None:
    columns = TextColumn("{task.description}"), BarColumn(12), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, TextColumn("{task.fields[phase]}"), console=console, transient=True) as bar:
        task = bar.add_task(image.rpartition("/")[2], total=None, phase="")
        while not stop.wait(0.25):
            bar.update(task, completed=progress.downloaded, total=progress.total or None, phase=progress.phase)
