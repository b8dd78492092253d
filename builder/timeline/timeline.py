"""The timeline of a run as data, for the store's record of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from builder.progress.stages import StageTime


@dataclass(frozen=True)
class Sample:
    """What was used at one moment, or on average since the sample before."""

    #: Seconds since the start of the run.
    at: float
    #: Cores that the programs of the run used.
    cores: float
    #: Bytes that the programs of the run had allocated.
    memory: int
    #: Cores that all programs of the machine used.
    machine_cores: float
    #: Bytes of memory that were not available to further programs.
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
    #: Number of cores of the machine.
    cores: int = 0
    #: Bytes of memory of the machine.
    memory: int = 0

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of the workers; empty for a run on this machine."""
        return tuple(sorted({stage.machine for stage in self.stages if stage.machine}))

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        return {
            "stages": [_stage(stage) for stage in self.stages],
            "samples": [astuple(sample) for sample in self.samples],
            "uses": {name: asdict(use) for name, use in self.uses.items()},
            "cores": self.cores,
            "memory": self.memory,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        """Read what `to_json` wrote; raises KeyError, ValueError or TypeError on anything else."""
        return cls(
            stages=tuple(StageTime(**stage) for stage in data["stages"]),
            samples=tuple(Sample(*sample) for sample in data["samples"]),
            uses={name: Use(**use) for name, use in data["uses"].items()},
            cores=int(data["cores"]),
            memory=int(data["memory"]),
        )


def _stage(stage: StageTime) -> dict[str, Any]:
    """One stage as plain data; without a worker it has no key for it."""
    return {key: value for key, value in asdict(stage).items() if key != "machine" or value}


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
