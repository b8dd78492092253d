"""`buildfarm build --scheduler`: a build is a task of Dask, and so are the checks of its wheel in a cell."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from builder.commands.building.preflight import RunSettings
from builder.commands.building.story import BuildRun
from builder.commands.distributed import protocol
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.options import WorkersOptions
from builder.commands.distributed.protocol import BuildTask, CheckTask, WorkerAnswer
from builder.errors import BuildError, Code, MissingToolError
from builder.formats import digest_of
from builder.images.registry import lock_path
from builder.matrix.axes import Cell
from builder.matrix.plan import Build
from builder.proof import Proof
from builder.proofs.cells.op_gate import CELL_CHECKS, CellProofs
from builder.proofs.cells.prover import WheelProver, cell_basis, timed_out
from builder.store import StoredBuild, work_name, write_atomic
from builder.untrusted import known_json, text
from builder.wheels.sources.prepare import source_digest

#: How often a build is made whose wheel cannot be copied, because its worker is gone, and checks are tried on workers
#: that lack the wheel.
ATTEMPTS = 3
#: How many builds have a thread that waits for workers.
MOST_BUILDS = 1000


def append_log(answer: WorkerAnswer, log: Path) -> None:
    """Append what a worker sent of its log to the log of this machine; without it if that is not possible."""
    with suppress(OSError), log.open("ab") as stream:
        stream.write(zlib.decompress(answer.log) if answer.log else b"")


def is_open(task: CheckTask, earlier: Sequence[Proof], *, gpu: bool) -> bool:
    """Whether another run could decide a check, beside earlier proofs; `gpu`: it would be on a worker with a GPU."""
    basis = cell_basis(task.recipe)
    counts = [p for p in earlier if p.cell == task.cell and p.basis == basis.get(p.check) and not timed_out(p)]
    decided = {p.check for p in counts if p.has_run or (p.evidence.get("settled") and not (gpu and p.check.on_gpu))}
    return task.again or not decided.issuperset(CELL_CHECKS)


@dataclass(eq=False)
class RemoteRun(BuildRun):
    """Builds and proves the wheels of one run on workers. Its prover runs the checks of wheel files here."""

    prover: WheelProver
    settings: RunSettings
    options: WorkersOptions
    _cluster: Cluster | None = field(default=None, init=False)
    _tasks: dict[Build, BuildTask] = field(default_factory=dict, init=False)
    _parcels: dict[str, Mapping[str, bytes]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = replace(self.settings, matrix=replace(self.settings.matrix, extensions=()))

    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """As in `BuildRun`."""
        self._tasks = {build: self._task(build) for build in builds}
        return {build: self._known(task) is not None for build, task in self._tasks.items()}

    def start(self, builds: Mapping[Build, bool]) -> tuple[int, Sequence[Build]]:
        """Connect to the scheduler; raises UnreachableError. All builds go to Dask at once."""
        for name in dict.fromkeys(build.extension for build in builds):
            self._parcels[name] = protocol.packed(self.recipes[name], self.settings.matrix.path, self.store)
        address, patience = self.options.scheduler or "", self.options.worker_timeout
        self._cluster = Cluster(address, patience=patience, on_stage=self._show)
        return min(max(len(builds), 1), MOST_BUILDS), [*builds]

    def end(self) -> None:
        """Disconnect: workers end the tasks that nobody waits for."""
        if self._cluster:
            self._cluster.close()

    def _show(self, title: str, machine: str, stage: str) -> None:
        """Show what a worker does for a task. That of checks, `BUILD in CELL`, ends with the task."""
        if stage:
            self.progress.stage(title, stage.partition(" in torch")[0], machine)
        elif " in " in title:
            self.progress.finish(title, "")

    def make(self, build: Build, log: Path, stage: Callable[[str], None]) -> tuple[StoredBuild, bool]:
        """Let a worker build, and copy the wheel; again if the worker is gone by then."""
        task, cluster = self._tasks[build], cast("Cluster", self._cluster)
        if stored := self._known(task):
            return stored, True
        log.write_bytes(b"")
        for _ in range(ATTEMPTS):
            answer = cluster.compute(task, self._parcels[build.extension])
            append_log(answer, log)
            if answer.error is not None:
                if isinstance(answer.error, BuildError) and answer.error.log:  # the path on the worker
                    there, answer.error.log = str(answer.error.log), log
                    answer.error.hints = tuple(hint.replace(there, str(log)) for hint in answer.error.hints)
                raise answer.error
            stage("copy")
            with suppress(OSError):
                stored = self._collect(cluster, answer)
                protocol.keep_locks(self.store.root / "envs", answer.locks)
                write_atomic(self._note(task), json.dumps({"digest": stored.digest}).encode())
                return stored, answer.reused
        raise MissingToolError(
            f"the workers that built {task.title} were gone before the wheel was copied", Code.KILLED
        )

    def prove(self, build: Build, stored: StoredBuild, log: Path, stage: Callable[[str], None]) -> list[Proof]:
        """Prove the wheel on workers, and its file here."""
        recipe, again = self.recipes[build.extension], self.prover.again
        subject, cluster = self.prover.subject(stored, build, recipe), cast("Cluster", self._cluster)
        earlier = self.store.proofs(stored.sha256)
        basis = digest_of({str(check): digest for check, digest in cell_basis(recipe).items()})
        # A container's wheel may need a newer glibc than a worker has.
        settings = replace(self.settings, executor=stored.record.record.toolchain.executor)
        tasks = [CheckTask(stored, recipe, cell, settings, basis, build, again=again) for cell in subject.claim.cells]
        tasks = [task for task in tasks if is_open(task, earlier, gpu=cluster.has_gpu())]
        made: dict[Cell, tuple[Proof, ...]] = {}
        if tasks:
            stage("prove in its cells")
            with ThreadPoolExecutor(len(tasks)) as pool:
                found = pool.map(lambda task: self._checked(task, log), tasks)
                made = {task.cell: proofs for task, proofs in zip(tasks, found, strict=True)}
        return self.prover.prove(subject, log=log, stage=lambda _: None, others=made)

    def _checked(self, first: CheckTask, log: Path) -> tuple[Proof, ...]:
        """One proof for each check of a cell; "not run" where no worker can. A worker that lacks the wheel gets it."""
        task, only, cluster = first, "", cast("Cluster", self._cluster)
        for attempt in range(1, ATTEMPTS + 1):
            answer = cluster.compute(task, self._parcels[task.build.extension], only=only)
            append_log(answer, log)
            if not answer.no_wheel:
                break
            only = answer.worker
            task = replace(first, basis=f"{first.basis}-{attempt}")  # Dask does not run a finished key again
            with suppress(OSError):
                cluster.send(only, task.wheel)
        if answer.error is None and not answer.no_wheel:
            return answer.proofs
        reason = str(answer.error or "no worker could get the wheel")
        return tuple(CellProofs(task.wheel.sha256, task.cell).not_run(reason, CELL_CHECKS))

    def _task(self, build: Build) -> BuildTask:
        """The task of a build; its digest covers everything that this machine knows about the build."""
        recipe = self.recipes[build.extension].of(build.torch, build.cuda)
        settings, matrix = self.settings, self.settings.matrix
        lock = lock_path(matrix.path)
        digest = digest_of(
            {
                "build": [str(build), build.local_version, [str(arch) for arch in build.archs]],
                "recipe": repr(replace(recipe, folder=Path(), source=None, patches=())),  # type: ignore[arg-type]
                "source": source_digest(recipe),
                "images": [repr(matrix.images), matrix.torch_index],
                "lock": lock.read_text() if lock.is_file() else "",
                "executor": [settings.executor, settings.minor_mismatch],
                **({} if settings.compiler_cache else {"compiler cache": False}),
                "version": protocol.version_resource(),
            }
        )
        return BuildTask(digest, build, recipe, settings)

    def _known(self, task: BuildTask) -> StoredBuild | None:
        """The wheel that an earlier run got for this task, or None."""
        self.store.use(f"remote/{task.digest}.json")
        digest = known_json(self._note(task), lambda data: text(data["digest"]))
        return self.store.take(digest) if digest else None

    def _note(self, task: BuildTask) -> Path:
        """The file that says which build is the answer to a task."""
        return self.store.root / "remote" / f"{task.digest}.json"

    def _collect(self, cluster: Cluster, answer: WorkerAnswer) -> StoredBuild:
        """The wheel in this store, copied from the worker that made it; raises OSError if it does not have it."""
        made = cast("StoredBuild", answer.wheel)
        with self.store.work(work_name(made.digest)) as folder:
            if stored := self.store.take(made.digest):
                return stored
            cluster.fetch(answer.worker, made, folder / made.wheel.name)
            return self.store.add(made.digest, folder / made.wheel.name, made.record)
