"""Reads wheels of a package index for the atlas: a wheel is downloaded, read and deleted; what it says is kept."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from builder.errors import UsageError
from builder.matrix.axes import Python
from builder.store import remove_temporary_files, write_atomic
from builder.wheelfile.archive import WheelFile, record_fault
from builder.wheelfile.compatibility import is_compatible
from builder.wheelfile.facts import WheelFacts, facts_from_json, facts_to_json, open_wheel, read_facts
from builder.wheels.sources.index import Location, download_wheel, locate

#: The Python and the newest platform of the wheels.
PYTHON = Python(3, 12)
_PLATFORM = "x86_64-manylinux_2_40"


@dataclass(frozen=True)
class Reading:
    """What is kept of a wheel."""

    #: What its file says.
    facts: WheelFacts
    #: The first difference between its files and its RECORD, or empty.
    record: str
    #: The day of the reading, such as 2026-11-23.
    day: str
    #: A wheel with its Python files and its metadata; every other file is empty.
    hollow: Path


def newest_wheels(project: str, count: int) -> Iterator[Location]:
    """The wheel of each of the newest releases that have one for `PYTHON` on Linux with an x86_64 processor.

    Of several wheels, the one with libraries. Raises UsageError if no release has one, MissingToolError when the index
    cannot be reached.
    """
    asked = ("--only-binary=:all:", f"--python-version={PYTHON}", f"--python-platform={_PLATFORM}")
    wanted = project
    for number in range(count):
        try:
            found = locate(wanted, "wheel", *asked)
        except UsageError:
            if number == 0:
                raise
            return
        fitting = [one for one in found if is_compatible(one.name, PYTHON, any_glibc=True)]
        yield from sorted(fitting, key=lambda one: one.name.endswith("-any.whl"))[:1]
        wanted = f"{project}<{found[0].name.split('-')[1]}"


@dataclass
class Reader:
    """Reads wheels, and keeps one file for each in its folder."""

    #: For what is kept, and for one wheel at a time.
    folder: Path
    #: The number of wheels that were downloaded.
    read: int = 0
    #: Their bytes.
    fetched: int = 0
    #: The most bytes that a wheel and its unpacked library took at the same time, sampled.
    peak: int = 0
    _scratch: Path = field(init=False)

    def __post_init__(self) -> None:
        """Delete what a killed run left behind."""
        self._scratch = self.folder / "scratch"
        shutil.rmtree(self._scratch, ignore_errors=True)
        remove_temporary_files(self.folder)

    def reading(self, wheel: Location) -> Reading:
        """What the wheel says: what is kept of it, else of a download.

        Raises UsageError for a file that is no readable wheel, MissingToolError when the download fails.
        """
        kept, hollow = self.folder / f"{wheel.name}.json.gz", self.folder / wheel.name
        if kept.is_file():
            data = json.loads(gzip.decompress(kept.read_bytes()))
            found = Reading(facts_from_json(data["facts"]), data["record"], data["day"], hollow)
            if wheel.sha256 in ("", found.facts.sha256):
                return found
        found = self._download(wheel, hollow)
        data = {"facts": facts_to_json(found.facts), "record": found.record, "day": found.day}
        write_atomic(kept, gzip.compress(json.dumps(data).encode(), 6, mtime=0))
        return found

    def _download(self, wheel: Location, hollow: Path) -> Reading:
        with self._measured():
            hashed = f"#sha256={wheel.sha256}" if wheel.sha256 else ""
            path = download_wheel(f"{wheel.url}{hashed}", cache=self._scratch)[0]
            self.read, self.fetched = self.read + 1, self.fetched + path.stat().st_size
            facts = read_facts(path)
            with open_wheel(path) as archive:
                fault = record_fault(archive)
                write_atomic(hollow, hollowed(archive))
            return Reading(facts, fault, f"{datetime.now(UTC):%Y-%m-%d}", hollow)

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """A folder for one wheel and its unpacked libraries, which is deleted; its size is sampled meanwhile."""
        self._scratch.mkdir(parents=True)
        before, tempfile.tempdir = tempfile.tempdir, str(self._scratch)
        ended = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(ended,), daemon=True)
        sampler.start()
        try:
            yield
        finally:
            ended.set()
            sampler.join()
            tempfile.tempdir = before
            shutil.rmtree(self._scratch)

    def _sample(self, ended: threading.Event) -> None:
        while not ended.wait(0.05):
            self.peak = max(self.peak, size_of(self._scratch))


def hollowed(archive: WheelFile) -> bytes:
    """The wheel with its Python files and its metadata only; every other file is empty."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as hollow:
        for name in archive.names:
            wanted = name.endswith(".py") or name.startswith(f"{archive.dist_info}/")
            hollow.writestr(name, archive.read(name) if wanted else b"")
    return target.getvalue()


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder; a file that vanishes meanwhile counts as none."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
