"""What client and workers send each other, and the version that both must have."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder import __version__
from builder.commands.run_settings import Settings
from builder.errors import DISK_HINT, BuildError, BuildfarmError, Code, MissingToolError, PreflightError, UsageError
from builder.formats import BUILD_FORMAT, CELL_FORMAT, LINKAGE_FORMAT, OPS_FORMAT, PROTOCOL, STATIC_FORMAT
from builder.gate.outcome import Answer as GateAnswer
from builder.hashing import digest_of
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.proof import Proof
from builder.records import BuildRecord
from builder.store import StoredBuild

#: The formats that client and worker must have in common besides the protocol.
_FORMATS = f"{BUILD_FORMAT}.{STATIC_FORMAT}.{LINKAGE_FORMAT}.{CELL_FORMAT}.{OPS_FORMAT}"
#: The topic of Dask's events in which workers report the stages of their tasks.
TOPIC = "buildfarm"
#: The name of buildfarm's plugin on a worker.
PLUGIN = "buildfarm"

#: Dask resources. A task asks for one of `BUILDS` or `PROOFS`, of `MEMORY` in bytes, and for what the worker must have.
BUILDS, PROOFS, MEMORY = "builds", "proofs", "memory"
#: Bytes of memory that the checks of a cell are assumed to need.
PROOF_MEMORY = 2 << 30
#: Stands for the digest of a build where a wheel has none.
NO_BUILD = "no-build"
#: How much a worker offers of a resource that many tasks use at the same time, such as Docker.
MANY = 1_000_000
_KINDS: dict[str, type[BuildfarmError]] = {
    "MissingToolError": MissingToolError,
    "UsageError": UsageError,
    "BuildfarmError": BuildfarmError,
}


def version_text() -> str:
    """The version in messages: `0.1.0 (protocol 1, formats 1.1.1.1.1)`."""
    return f"{__version__} (protocol {PROTOCOL}, formats {_FORMATS})"


def version_resource() -> str:
    """The Dask resource that only workers with the same version, protocol and formats offer."""
    return f"buildfarm-{__version__}-{PROTOCOL}-{_FORMATS}"


@dataclass(frozen=True)
class BuildTask:
    """One build to make."""

    #: Of everything that the client knows about the build; it names the task.
    digest: str
    #: build, recipe: what to build; the recipe's paths are the client's.
    build: Build
    recipe: Recipe
    #: The options of the run.
    settings: Settings

    @property
    def key(self) -> str:
        """The Dask key. Dask averages durations over the part before the digest."""
        return f"build_{self.build.extension}_{self.build.cuda.variant}-{self.digest[:32]}"

    @property
    def title(self) -> str:
        """The name in messages."""
        return str(self.build)


@dataclass(frozen=True)
class WheelFile:
    """A wheel of any origin that a worker gets from another worker, or from the client."""

    #: Of the build, the wheel's name in the store; NO_BUILD for a wheel that is in no store.
    digest: str
    #: filename, sha256, size: of the file; the size in bytes.
    filename: str
    sha256: str
    size: int
    #: Addresses of workers that have it.
    holders: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class WheelRef(WheelFile):
    """A wheel that a worker built."""

    #: How it was built.
    record: BuildRecord

    @classmethod
    def of(cls, stored: StoredBuild, holders: tuple[str, ...] = ()) -> WheelRef:
        """A wheel of a store; raises OSError if the file is gone."""
        size = stored.wheel.stat().st_size
        return cls(stored.digest, stored.wheel.name, stored.sha256, size, stored.record, holders=holders)


@dataclass(frozen=True)
class ProofTask:
    """The checks of one wheel in one cell."""

    #: The wheel.
    wheel: WheelRef
    #: build, recipe: what it was built from.
    build: Build
    recipe: Recipe
    #: Where it is tested.
    cell: Cell
    #: The options of the run.
    settings: Settings
    #: Digest of what the verdicts depend on besides the wheel.
    basis: str
    #: The GPU model that the worker must have, `sm_90`; empty: any worker.
    gpu: str = ""
    #: Whether checks that are decided run again.
    again: bool = False

    @property
    def key(self) -> str:
        """The Dask key. Dask averages durations over the part before the cell: they differ by extension."""
        name = digest_of([self.wheel.sha256, str(self.cell), self.basis, self.gpu, self.again])[:32]
        return f"prove_{self.build.extension}{self.gpu and '_'}{self.gpu}-{self.cell}-{name}"

    @property
    def title(self) -> str:
        """The name in messages."""
        return f"{self.build} in {self.cell}{self.gpu and ' on '}{self.gpu}"

    @property
    def in_docker(self) -> bool:
        """Whether the checks run in a container: the wheel may need a newer glibc than the worker has."""
        return self.wheel.record.record.toolchain.executor == "docker"


@dataclass(frozen=True)
class SmokeTask:
    """The checks of `smoke`: one wheel file in one cell."""

    #: The wheel.
    wheel: WheelFile
    #: Its cases are run.
    recipe: Recipe
    #: Where it is tested.
    cell: Cell
    #: The options of the run; the executor is `local` or `docker`.
    settings: Settings
    #: Digest of what the verdicts depend on besides the wheel.
    basis: str
    #: The GPU model that the worker must have, `sm_90`; empty: any worker.
    gpu: str = ""

    @property
    def key(self) -> str:
        """The Dask key."""
        settings = [self.settings.executor, self.settings.pull, self.settings.python_downloads]
        name = digest_of([self.wheel.sha256, str(self.cell), self.basis, self.gpu, settings])[:32]
        return f"smoke_{self.cell}{self.gpu and '_'}{self.gpu}-{name}"

    @property
    def title(self) -> str:
        """The name in messages."""
        return f"{self.wheel.filename} in {self.cell}{self.gpu and ' on '}{self.gpu}"

    @property
    def in_docker(self) -> bool:
        """Whether the checks run in a container."""
        return self.settings.executor == "docker"


Task = BuildTask | ProofTask | SmokeTask


@dataclass(frozen=True)
class Answer:
    """What a worker made of a task."""

    #: Its address.
    worker: str = ""
    #: Its name in messages.
    machine: str = ""
    #: Why the task failed, or None.
    failure: Failure | None = None
    #: Whether the worker could not get the wheel of a proof.
    no_wheel: bool = False
    #: What a build made.
    wheel: WheelRef | None = None
    #: Whether the worker had the wheel already.
    reused: bool = False
    #: What a proof made.
    proofs: tuple[Proof, ...] = ()
    #: Every outcome of the op gate.
    gate: GateAnswer | None = None
    #: Name of the log file in the worker's store, and its size in bytes.
    log: tuple[str, int] = ("", 0)
    #: The lock records of environments that the build used.
    locks: Mapping[str, str] = field(default_factory=dict)
    #: Wall time.
    seconds: float = 0.0
    #: Most bytes that the programs of the build had allocated at the same time; 0: not measured.
    memory: int = 0


@dataclass(frozen=True)
class Failure:
    """An error as data."""

    kind: str
    sentence: str
    code: Code
    where: str = ""
    hints: tuple[str, ...] = ()
    stage: str = ""
    excerpt: tuple[str, ...] = ()
    #: Whether the worker is the reason, and not the build: another worker may succeed.
    machine: bool = False
    #: The path of the log on the worker, as the hints name it.
    log: str = ""

    @classmethod
    def of(cls, error: BuildfarmError, *, machine: bool = False) -> Failure:
        """The data of an error; of several errors, one sentence with all of them."""
        if isinstance(error, PreflightError):
            hints = tuple(dict.fromkeys(hint for problem in error.problems for hint in problem.hints))
            return cls(
                "MissingToolError", "; ".join(map(str, error.problems)), error.code, hints=hints, machine=machine
            )
        if isinstance(error, BuildError):
            told = (error.sentence, error.code, error.where, error.hints, error.stage, error.excerpt)
            return cls("BuildError", *told, machine=machine, log=str(error.log or ""))
        kind = next(name for name, known in _KINDS.items() if isinstance(error, known))
        return cls(kind, error.sentence, error.code, error.where, error.hints, machine=machine)

    @classmethod
    def of_os_error(cls, error: OSError) -> Failure:
        """The data of what the system refused on a worker."""
        place = str(error.filename or "")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = "the disk of the worker is full"
            return cls("BuildfarmError", full, Code.DISK_FULL, place, (DISK_HINT,), machine=True)
        return cls("BuildfarmError", str(error.strerror or error), Code.PATH_NOT_USABLE, place, machine=True)

    def error(self, log: Path | None = None) -> BuildfarmError:
        """The error again; `log` is the client's copy of the log."""
        if self.kind == "BuildError":
            hints = [hint.replace(self.log, str(log)) if self.log and log else hint for hint in self.hints]
            return BuildError(
                self.sentence, self.code, stage=self.stage, log=log, where=self.where, hints=hints, excerpt=self.excerpt
            )
        return _KINDS[self.kind](self.sentence, self.code, where=self.where, hints=self.hints)
