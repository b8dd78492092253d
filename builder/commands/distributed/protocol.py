"""What client and workers send each other: tasks, answers, the files of a recipe; and the version that both have."""

from __future__ import annotations

import errno
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder import __version__
from builder.commands.building.preflight import RunSettings
from builder.errors import DISK_HINT, BuildfarmError, Code
from builder.formats import BUILD_FORMAT, CELL_FORMAT, LINKAGE_FORMAT, OPS_FORMAT, PROTOCOL, STATIC_FORMAT, digest_of
from builder.gate.amounts import size_text
from builder.gate.pack import REFERENCES
from builder.images.registry import lock_path
from builder.matrix.axes import Cell, Cuda
from builder.matrix.compat_table import FACTS
from builder.matrix.config import PathSource, Recipe
from builder.matrix.plan import Build
from builder.proof import Proof
from builder.store import Store, StoredBuild, write_atomic
from builder.wheels.sources.folder import source_files

#: The formats that client and worker must have in common besides the protocol.
_FORMATS = f"{BUILD_FORMAT}.{STATIC_FORMAT}.{LINKAGE_FORMAT}.{CELL_FORMAT}.{OPS_FORMAT}"
#: The topic of Dask's events in which workers report the stages of their tasks.
TOPIC = "buildfarm"
#: The name of buildfarm's plugin on a worker.
PLUGIN = "buildfarm"

#: Dask resources. A task asks for one of `BUILDS` or `PROOFS`, of `MEMORY` in bytes, and for what the worker must have.
#: No task asks for a `GPU`: checks go to the workers that offer one, if there are any.
BUILDS, PROOFS, MEMORY, GPU = "builds", "proofs", "memory", "gpu"
#: Bytes of memory that the checks of a cell are assumed to need.
PROOF_MEMORY = 2 << 30
#: How much a worker offers of a resource that many tasks use at the same time, such as Docker.
MANY = 1_000_000


def version_text() -> str:
    """The version in messages: `0.1.0 (protocol 1, formats 1.1.1.1.1)`."""
    return f"{__version__} (protocol {PROTOCOL}, formats {_FORMATS})"


def version_resource() -> str:
    """The Dask resource that only workers with the same version, protocol and formats offer."""
    return f"buildfarm-{__version__}-{PROTOCOL}-{_FORMATS}"


#: Resources that a task needs: the amount, and what to say of a worker that offers less.
Needs = dict[str, tuple[float, str]]


def compile_resource(executor: str, cuda: Cuda) -> str:
    """The resource that a build for this CUDA asks for."""
    if executor == "docker":
        return "docker"
    return f"{'any' if executor == 'auto' else executor}-{cuda.variant}"


@dataclass(frozen=True)
class BuildTask:
    """One build to make."""

    #: Of everything that the client knows about the build; it names the task.
    digest: str
    #: build, recipe: what to build; the recipe's paths are the client's.
    build: Build
    recipe: Recipe
    #: The options of the run.
    settings: RunSettings

    #: what, priority: as in `CheckTask`.
    what = "this build"
    priority = 0

    @property
    def key(self) -> str:
        """The Dask key. Dask averages durations over the part before the digest."""
        return f"build_{self.build.extension}_{self.build.cuda.variant}-{self.digest[:32]}"

    @property
    def title(self) -> str:
        """The name in messages."""
        return str(self.build)

    @property
    def needs(self) -> Needs:
        """One of the worker's builds, memory, and a compiler for the CUDA version."""
        settings, cuda, memory = self.settings, self.build.cuda, self.recipe.memory_per_job
        compiler = compile_resource(settings.executor, cuda)
        toolkit = f"no CUDA {cuda} toolkit with a C++ compiler"
        lack = {"docker": "no Docker", "local": toolkit}.get(settings.executor, f"{toolkit} and no Docker")
        less = f"less than {size_text(memory)} of memory"
        return {BUILDS: (1, "no builds"), MEMORY: (memory, less), compiler: (1, lack)}


@dataclass(frozen=True)
class CheckTask:
    """The checks of one wheel in one cell."""

    #: wheel, recipe, cell: the cases of the recipe are run with the wheel, whose path is the client's, in the cell.
    wheel: StoredBuild
    recipe: Recipe
    cell: Cell
    #: The options of the run. With the executor `docker`, the checks run in a container.
    settings: RunSettings
    #: Digest of what the verdicts depend on besides the wheel.
    basis: str
    #: What the wheel was built from.
    build: Build
    #: Whether checks that are decided run again.
    again: bool = False

    #: What the task is, in an error that is printed once for all tasks that it stops.
    what = "these checks"

    @property
    def key(self) -> str:
        """The Dask key. Dask averages durations over the part before the digest: they differ by extension."""
        name = digest_of([self.wheel.sha256, str(self.cell), self.basis, self.again, self.settings.executor])[:32]
        return f"prove_{self.build.extension}_{self.cell}-{name}"

    @property
    def title(self) -> str:
        """The name in messages."""
        return f"{self.build} in {self.cell}"

    @property
    def needs(self) -> Needs:
        """The worker's op gate, memory, and Docker if the task names it."""
        memory = max(PROOF_MEMORY, self.recipe.memory_per_job)
        needs: Needs = {PROOFS: (1, "no proofs"), MEMORY: (memory, f"less than {size_text(memory)} of memory")}
        if self.settings.executor == "docker":
            needs["docker"] = (1, "no Docker")
        return needs

    @property
    def priority(self) -> int:
        """A finished wheel is tested before another one is built; checks that fewer workers can run come first."""
        return len(self.needs)


Task = BuildTask | CheckTask


@dataclass(frozen=True)
class WorkerAnswer:
    """What a worker made of a task."""

    #: worker, machine: its address, and its name in messages.
    worker: str = ""
    machine: str = ""
    #: error, machine_fault: why the task failed, and whether the worker is the reason: another one may succeed.
    error: BuildfarmError | None = None
    machine_fault: bool = False
    #: Whether the worker lacks the wheel to check.
    no_wheel: bool = False
    #: wheel, reused: what a build made, with the worker's path of the file, and whether the worker had it already.
    wheel: StoredBuild | None = None
    reused: bool = False
    #: What checks made.
    proofs: tuple[Proof, ...] = ()
    #: What the log of the task has, compressed by zlib.
    log: bytes = b""
    #: The lock records of environments that the build used.
    locks: Mapping[str, str] = field(default_factory=dict)


def refused(error: OSError) -> WorkerAnswer:
    """The answer of a worker whose system refused something."""
    sentence, code, hints = str(error.strerror or error), Code.PATH_NOT_USABLE, []
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        sentence, code, hints = "the disk of the worker is full", Code.DISK_FULL, [DISK_HINT]
    where = str(error.filename or "")
    return WorkerAnswer(error=BuildfarmError(sentence, code, where=where, hints=hints), machine_fault=True)


#: Bytes of one part. Dask keeps a part in the memory of a worker, and of the scheduler until the run ends.
PART = 8 << 20
#: The image lock file in the archive, beside the recipe's files.
LOCK = "buildfarm.lock"
#: The folder with lock records of environments in the archive.
LOCKS = "locks"


def packed(recipe: Recipe, matrix: Path, store: Store) -> dict[str, bytes]:
    """What a worker needs, in parts of at most PART bytes, each with the name of its content; equal files: equal parts.

    That is cases with their references, patches, the source, buildfarm.lock and facts.yaml beside `matrix`, and the
    lock records of the store's environments. Raises UsageError for a source folder that does not exist.
    """
    wanted = [*recipe.patches, *([recipe.cases] if recipe.cases else [])]
    wanted += [path for path in (recipe.folder / REFERENCES).rglob("*") if path.is_file()]
    if isinstance(recipe.source, PathSource):
        wanted += [path for _, path in source_files(recipe.source.path)]
    kept = {path.relative_to(recipe.folder) for path in wanted if "__pycache__" not in path.parts}
    members = {f"recipe/{name}": recipe.folder / name for name in sorted(kept)}
    beside = {LOCK: lock_path(matrix), FACTS.name: matrix.with_name(FACTS.name)}
    members |= {name: path for name, path in beside.items() if path.is_file()}
    members |= {f"{LOCKS}/{path.name}": path for path in sorted((store.root / "envs").glob("*.json"))}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz", preset=1) as archive:
        for name, path in members.items():
            archive.add(path, name, recursive=False, filter=_plain)
    data = stream.getvalue()
    parts = [data[start : start + PART] for start in range(0, len(data), PART)]
    return {f"parcel-{hashlib.sha256(part).hexdigest()[:32]}": part for part in parts}


def unpack(parts: Sequence[bytes], folder: Path) -> Path:
    """Write the files below an empty folder; return the folder of the recipe."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts)), mode="r:xz") as archive:
        archive.extractall(folder, filter="data")
    (folder / "recipe").mkdir(parents=True, exist_ok=True)
    return folder / "recipe"


def moved(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with its folder at another place."""

    def there(path: Path) -> Path:
        return folder / path.relative_to(recipe.folder)

    source = PathSource(there(recipe.source.path)) if isinstance(recipe.source, PathSource) else recipe.source
    return replace(recipe, folder=folder, source=source, patches=tuple(map(there, recipe.patches)))


def locks_in(envs: Path, names: Sequence[str] | None = None) -> dict[str, str]:
    """The lock records in the store's folder `envs`, as text by file name."""
    return {path.name: path.read_text() for path in sorted(envs.glob("*.json")) if names is None or path.name in names}


def keep_locks(envs: Path, locks: Mapping[str, str]) -> None:
    """Write the lock records that the store's folder `envs` lacks."""
    for name, record in locks.items():
        path = envs / Path(name).name
        if not path.exists():
            write_atomic(path, record.encode())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what differs between machines: owner and time."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
