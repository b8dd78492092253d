"""The timeline of a run: its stages, and the cores and the memory that its programs use."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import psutil

from builder.process import OWNER_VARIABLE
from builder.progress.display import StageTime, repeated
from builder.proof import Proof
from builder.store import work_name

#: Seconds between two samples; doubled each time a run has too many.
INTERVAL = 1.0
MOST_SAMPLES = 1200


class Sample(NamedTuple):
    """What was used at one moment, or on average since the sample before."""

    #: Seconds since the start of the run.
    at: float
    #: cores, memory: what the programs of the run used, and how many bytes they had allocated.
    cores: float
    memory: int
    #: The same of all programs of the machine: the memory in bytes that was not available to further programs.
    machine_cores: float
    machine_memory: int


@dataclass(frozen=True)
class Use:
    """What the programs of one build, or of one cell, used."""

    #: The highest number of bytes that they had allocated at the same time.
    memory: int
    #: Seconds of processor time.
    cpu_seconds: float


@dataclass(frozen=True)
class Timeline:
    """What happened when in one run."""

    #: Of every build, in the order in which they ended; seconds since the start of the run.
    stages: tuple[StageTime, ...] = ()
    #: Of cores and memory, in order.
    samples: tuple[Sample, ...] = ()
    #: By build, and by `BUILD in CELL`; only of programs that ran longer than a sample, outside of containers.
    uses: Mapping[str, Use] = field(default_factory=dict)
    #: cores, memory: of the machine; the memory in bytes.
    cores: int = 0
    memory: int = 0

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of the workers; empty for a run on this machine."""
        return tuple(sorted({stage.machine for stage in self.stages if stage.machine}))


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Half as many samples: each pair becomes one, with the average of the cores and the larger memory."""
    pairs = zip(samples[::2], samples[1::2], strict=False)
    return [
        Sample(
            second.at,
            round((first.cores + second.cores) / 2, 2),
            max(first.memory, second.memory),
            round((first.machine_cores + second.machine_cores) / 2, 2),
            max(first.machine_memory, second.machine_memory),
        )
        for first, second in pairs
    ]


class Recorder:
    """Records the timeline of one run. Its programs are those that `process.run` starts for owners of its store."""

    def __init__(self, owners: str) -> None:
        """`owners` is the beginning of the owner of each program of the run (`Store.owner`)."""
        self._owners = owners
        self._started = time.monotonic()
        self._names: dict[str, str] = {}
        self._samples: list[Sample] = []
        self._uses: dict[str, Use] = {}
        #: By owner: the seconds of processor time and the bytes of its programs at the last sample.
        self._last: dict[str, tuple[float, int]] = {}
        self._before = self._started
        self._busy = _busy_seconds()
        self._interval = INTERVAL

    def name(self, owner: str, name: str) -> None:
        """Say which build, or which `BUILD in CELL`, the programs of an owner belong to."""
        self._names[owner] = name

    def name_cells(self, name: str, proofs: Iterable[Proof]) -> None:
        """Say that the programs that made these proofs belong to `NAME in CELL`."""
        for proof in proofs:
            if proof.cell:  # the owner is the one that `CellRunner` chooses
                self.name(f"prove-{work_name(proof.wheel)}-{proof.cell}", f"{name} in {proof.cell}")

    def recording(self) -> AbstractContextManager[None]:
        """Take samples while the body runs."""
        return repeated(self._follow, lambda: self._interval)

    def timeline(self, stages: Sequence[StageTime]) -> Timeline:
        """What was recorded; `stages` have seconds of `time.monotonic`."""
        start = self._started
        shifted = (replace(s, start=round(s.start - start, 2), end=round(s.end - start, 2)) for s in stages)
        uses: dict[str, Use] = {}
        for owner, use in self._uses.items():
            if name := self._names.get(owner):
                earlier = uses.get(name, Use(0, 0))
                seconds = round(earlier.cpu_seconds + use.cpu_seconds, 1)
                uses[name] = Use(max(earlier.memory, use.memory), seconds)
        return Timeline(
            tuple(shifted), tuple(self._samples), uses, psutil.cpu_count() or 1, psutil.virtual_memory().total
        )

    def _follow(self) -> None:
        self.sample()
        if len(self._samples) >= MOST_SAMPLES:
            self._samples, self._interval = thinned(self._samples), self._interval * 2

    def sample(self) -> None:
        """Take one sample."""
        found = self._read()
        now, busy, memory = time.monotonic(), _busy_seconds(), psutil.virtual_memory()
        elapsed, used = max(now - self._before, 1e-3), 0.0
        for owner, (total, held) in found.items():
            # Less than before: one of several programs of the owner has ended, and took its seconds along.
            seconds = max(total - self._last.get(owner, (0.0, 0))[0], 0)
            earlier = self._uses.get(owner, Use(0, 0))
            self._uses[owner] = Use(max(earlier.memory, held), earlier.cpu_seconds + seconds)
            used += seconds
        self._samples.append(
            Sample(
                at=round(now - self._started, 1),
                cores=round(used / elapsed, 2),
                memory=sum(held for _, held in found.values()),
                machine_cores=round(max(busy - self._busy, 0) / elapsed, 2),
                machine_memory=memory.total - memory.available,
            )
        )
        self._last, self._before, self._busy = found, now, busy

    def _read(self) -> dict[str, tuple[float, int]]:
        """By owner, the seconds and the bytes of its programs: what a program starts has the owner of the program.

        The seconds of a process that has ended are those of its parent, as a child's.
        """
        found: dict[str, tuple[float, int]] = {}
        owner_of: dict[int, str] = {}
        for process in psutil.Process().children(recursive=True):  # parents come before their children
            with suppress(psutil.Error):  # it ended meanwhile
                owner = owner_of.get(process.ppid()) or process.environ().get(OWNER_VARIABLE, "")
                if not owner.startswith(self._owners):
                    continue
                owner_of[process.pid] = owner
                times, memory = process.cpu_times(), process.memory_info()
                name = owner.removeprefix(self._owners)
                seconds, held = found.get(name, (0.0, 0))
                found[name] = (
                    seconds + times.user + times.system + times.children_user + times.children_system,
                    held + max(memory.rss - memory.shared, 0),  # pages of files, such as libraries, are shared
                )
        return found


def _busy_seconds() -> float:
    """Seconds that all cores of the machine have worked since its start."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)
