"""`buildfarm build` and `smoke` with `--scheduler`: a build is a task of Dask, and so are the checks in a cell."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from builder.commands.building.build_run import WheelBuilder
from builder.commands.building.executor_choice import RunSettings
from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.distributed.client.prove import CellChecks, append_log, basis_text
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.options import RemoteOptions
from builder.commands.distributed.protocol import (
    BuildTask,
    CheckTask,
    SentWheel,
    WorkerAnswer,
    keep_locks,
    packed,
    remember_build,
    remembered_build,
    version_resource,
)
from builder.commands.smoke_targets import SmokeTarget
from builder.errors import BuildError, BuildfarmError, Code, MissingToolError
from builder.gate.outcome import Answer as GateAnswer
from builder.hashing import digest_of
from builder.images.registry.lock import lock_path
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.progress.display import Progress, Timeline
from builder.proof import Proof, Verdict
from builder.proofs.cells.prover import WheelProver
from builder.records import BuildRecord
from builder.result import BuildResult
from builder.store import Store, StoredBuild, work_name
from builder.untrusted import remove_tree
from builder.wheels.sources.prepare import source_digest

#: How often a build is made whose wheel cannot be copied, because its worker is gone.
ATTEMPTS = 3

#: What a client does with workers: from the connection to the jobs that run together.
Jobs = Callable[[Cluster], Awaitable[Sequence[Coroutine[Any, Any, None]]]]
#: Takes the proofs of a wheel in a cell, and the answer of the op gate where there is one; returns the outcome as text.
Keep = Callable[[SmokeTarget, Cell, Sequence[Proof], GateAnswer | None], str]


async def _run_jobs(options: RemoteOptions, on_stage: Callable[[str, str, str], None], jobs: Jobs) -> None:
    """Connect to the scheduler and run the jobs together; `on_stage` is as in `Cluster`.

    Raises UnreachableError when the scheduler does not answer, what a job raises, and KeyboardInterrupt after a signal:
    the workers have been told to end their tasks then.
    """
    main = cast("asyncio.Task[None]", asyncio.current_task())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    try:
        async with Cluster(options.scheduler, patience=options.patience, on_stage=on_stage) as cluster:
            tasks = [asyncio.create_task(job) for job in await jobs(cluster)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class TaskLines:
    """A line of the progress for each task that a worker runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        #: The lines that stay until `finish`; others end with their task.
        self.expected: set[str] = set()

    def stage(self, name: str, machine: str, stage: str) -> None:
        """Show what a worker does for a task; an empty stage is the end of the task."""
        if stage:
            self._progress.stage(name, stage.partition(" in torch")[0], machine)
        elif name not in self.expected:
            self._progress.finish(name, "")

    def finish(self, name: str, outcome: str) -> None:
        """Show the outcome of an expected line."""
        self.expected.discard(name)
        self._progress.finish(name, outcome)


def smoke_on_workers(
    options: RemoteOptions,
    settings: RunSettings,
    store: Store,
    targets: Sequence[SmokeTarget],
    progress: Progress,
    keep: Keep,
) -> None:
    """Test each wheel in each of its cells on workers; `keep` is called once for each, when its checks have ended.

    Raises UnreachableError when the scheduler does not answer, and KeyboardInterrupt after a signal.
    """
    lines = TaskLines(progress)
    settings = replace(settings, matrix=replace(settings.matrix, extensions=()))

    async def one(cluster: Cluster, target: SmokeTarget, parts: Mapping[str, bytes], cell: Cell) -> None:
        name, log = f"{target.wheel.name} in {cell}", store.log(f"smoke-{target.wheel.name}-{cell}")
        log.write_bytes(b"")
        lines.expected.add(name)
        wheel = SentWheel(target.wheel.name, target.sha256, target.wheel.stat().st_size)
        task = CheckTask(wheel, target.recipe, cell, settings, basis_text(target.recipe), again=True)
        earlier = await asyncio.to_thread(store.proofs, target.sha256)
        proofs, answers = await CellChecks(task, target.wheel, parts, options.prove_on, earlier, log).run(cluster)
        gates = [answer.gate for answer in answers if answer.gate is not None]
        # The outcomes of one GPU model say nothing about another.
        lines.finish(name, keep(target, cell, proofs, gates[0] if len(gates) == 1 else None))

    async def jobs(cluster: Cluster) -> list[Coroutine[Any, Any, None]]:
        found: list[Coroutine[Any, Any, None]] = []
        for target in targets:
            parts = packed(target.recipe, settings.matrix.path, store, source=False)
            found += [one(cluster, target, parts, cell) for cell in target.cells]
        return found

    asyncio.run(_run_jobs(options, lines.stage, jobs))


class RemoteRun(WheelBuilder):
    """Builds and proves the wheels of one run on workers."""

    def __init__(
        self,
        store: Store,
        prover: WheelProver,
        recipes: Mapping[str, Recipe],
        settings: RunSettings,
        options: RemoteOptions,
    ) -> None:
        """`prover` runs the checks of wheel files here; those of cells run on workers."""
        self._store = store
        self._prover = prover
        self._recipes = recipes
        self._settings = replace(settings, matrix=replace(settings.matrix, extensions=()))
        self._options = options
        self._progress = Progress()
        self._lines = TaskLines(self._progress)
        self._scratch = store.root  # for files that are not complete
        self._parcels: dict[str, Mapping[str, bytes]] = {}
        self._tasks: dict[Build, BuildTask] = {}
        self._made: dict[str, WorkerAnswer] = {}  # by the digest of a task: what a worker made for an earlier run
        self.finished = {}

    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """Each build, and whether the store has its wheel from an earlier run."""
        self._tasks = {build: self._task(build) for build in builds}
        return {build: self._known(task) is not None for build, task in self._tasks.items()}

    def build_all(self, builds: Mapping[Build, bool]) -> list[BuildResult]:
        """Build and prove each build once; the results have the order of `builds`, the value of `stored`.

        Raises UnreachableError when the scheduler does not answer. A build that fails is a result with its error.
        """
        missing = [self._tasks[build].digest for build, there in builds.items() if not there]

        async def jobs(cluster: Cluster) -> list[Coroutine[Any, Any, None]]:
            self._made = await cluster.finished(missing)
            return [self._one(cluster, build) for build in builds]

        folder = self._store.work(f"remote-{digest_of(time.time())[:12]}")
        with folder as self._scratch, self._progress.shown():
            asyncio.run(_run_jobs(self._options, self._lines.stage, jobs))
        return [self.finished[build] for build in builds]

    def timeline(self) -> Timeline:
        """What happened when, until now."""
        return self._progress.timeline()

    async def _one(self, cluster: Cluster, build: Build) -> None:
        """One build from its recipe to its proofs; an error becomes the result, and the other builds go on."""
        name, started, log = str(build), time.monotonic(), self._store.log(str(build))
        self._lines.expected.add(name)
        task, stored, reused = self._tasks[build], None, True
        proofs: list[Proof] = []
        error: BuildfarmError | None = None
        try:
            stored = await asyncio.to_thread(self._known, task)
            if stored is None:
                stored, reused = await self._build(cluster, task, log)
            recipe = self._recipes[build.extension]
            await asyncio.to_thread(FolderBuilds(self._store).remember, build, recipe, stored.digest)
            proofs = await self._prove(cluster, build, stored, log)
        except BuildfarmError as problem:
            error, reused = problem, False
        failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
        outcome = f"failed: {error or failed[0].check}" if error or failed else "already built" if reused else "built"
        self._lines.finish(name, outcome)
        self.finished[build] = BuildResult(
            build,
            stored,
            error,
            reused=reused,
            seconds=time.monotonic() - started,
            toolchain=stored.record.record.toolchain if stored else None,
            proofs=tuple(proofs),
            log=log if log.is_file() else None,
        )

    async def _build(self, cluster: Cluster, task: BuildTask, log: Path) -> tuple[StoredBuild, bool]:
        """Let a worker build, and collect the wheel and whether the worker had it; again if the worker is gone."""
        log.write_bytes(b"")
        for _ in range(ATTEMPTS):
            answer = self._made.pop(task.digest, None)
            answer = answer or await cluster.compute(task, self._parts(task.recipe))
            await append_log(answer, log)
            if answer.error is not None:
                if isinstance(answer.error, BuildError) and answer.error.log:  # the path on the worker
                    there, answer.error.log = str(answer.error.log), log
                    answer.error.hints = tuple(hint.replace(there, str(log)) for hint in answer.error.hints)
                raise answer.error
            with suppress(OSError):
                stored = await self._collect(cluster, task, answer)
                keep_locks(self._store.root / "envs", answer.locks)
                return stored, answer.reused
        raise MissingToolError(
            f"the workers that built {task.title} were gone before the wheel was copied", Code.WORKER_STOPPED
        )

    async def _prove(self, cluster: Cluster, build: Build, stored: StoredBuild, log: Path) -> list[Proof]:
        """Prove the wheel on workers, and its file here."""
        recipe, again, gpus = self._recipes[build.extension], self._prover.again, self._options.prove_on
        subject = await asyncio.to_thread(self._prover.subject, stored, build, recipe)
        earlier = await asyncio.to_thread(self._store.proofs, stored.sha256)
        wheel, parts, basis = SentWheel.of(stored), self._parts(recipe), basis_text(recipe)
        # A container's wheel may need a newer glibc than a worker has.
        settings = replace(self._settings, executor=stored.record.record.toolchain.executor)
        tasks = [CheckTask(wheel, recipe, cell, settings, basis, build, again=again) for cell in subject.claim.cells]
        checks = [CellChecks(task, stored.wheel, parts, gpus, earlier, log) for task in tasks]
        checks = [each for each in checks if each.models]
        if checks:
            self._lines.stage(str(build), "", "prove in its cells")
        found = await asyncio.gather(*(each.run(cluster) for each in checks))
        made = {each.task.cell: proofs for each, (proofs, _) in zip(checks, found, strict=True)}
        return await asyncio.to_thread(self._prover.prove, subject, log=log, stage=lambda _: None, others=made)

    def _task(self, build: Build) -> BuildTask:
        """The task of a build; its digest covers everything that this machine knows about the build."""
        recipe, settings, matrix = self._recipes[build.extension], self._settings, self._settings.matrix
        lock = lock_path(matrix.path)
        digest = digest_of(
            {
                "build": [str(build), build.local_version, [str(arch) for arch in build.archs]],
                "recipe": repr(replace(recipe, folder=Path(), source=None, patches=())),  # type: ignore[arg-type]
                "source": source_digest(recipe),
                "images": [repr(matrix.images), matrix.registries, matrix.torch_index],
                "lock": lock.read_text() if lock.is_file() else "",
                "executor": [settings.executor, settings.minor_mismatch],
                **({} if settings.compiler_cache else {"compiler cache": False}),
                "version": version_resource(),
            }
        )
        return BuildTask(digest, build, recipe, settings)

    def _parts(self, recipe: Recipe) -> Mapping[str, bytes]:
        if recipe.name not in self._parcels:
            self._parcels[recipe.name] = packed(recipe, self._settings.matrix.path, self._store)
        return self._parcels[recipe.name]

    def _known(self, task: BuildTask) -> StoredBuild | None:
        """The wheel that an earlier run got for this task, or None."""
        digest = remembered_build(self._store, task.digest)
        return self._store.take(digest) if digest else None

    async def _collect(self, cluster: Cluster, task: BuildTask, answer: WorkerAnswer) -> StoredBuild:
        """The wheel in this store, copied from the worker that made it; raises OSError if it does not have it."""
        wheel = cast("SentWheel", answer.wheel)
        stored = await asyncio.to_thread(self._store.take, wheel.digest)
        if stored is None:
            folder = self._scratch / uuid4().hex
            folder.mkdir()
            try:
                await cluster.fetch(answer.worker, wheel, folder / wheel.filename)
                stored = await asyncio.to_thread(self._add, wheel, folder / wheel.filename)
            finally:
                remove_tree(folder)
        remember_build(self._store, task.digest, stored.digest)
        return stored

    def _add(self, wheel: SentWheel, path: Path) -> StoredBuild:
        with self._store.work(work_name(wheel.digest)):
            stored = self._store.take(wheel.digest)
            return stored or self._store.add(wheel.digest, path, cast("BuildRecord", wheel.record))
