"""`buildfarm build --scheduler`: each build is a task of Dask, and so are the checks of its wheel in each cell."""

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

from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.distributed.client.placement import Uses, first_builds, need_of_build
from builder.commands.distributed.client.prove import ProofPlan, open_cells, prove_cells
from builder.commands.distributed.client.transfer import fetch_log, fetch_wheel
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.options import RemoteOptions
from builder.commands.distributed.parcel import keep_locks, locks_in, named, pack
from builder.commands.distributed.protocol import Answer, BuildTask, Failure, WheelRef, version_resource
from builder.commands.distributed.worker.service import find_finished
from builder.commands.run_settings import Settings
from builder.errors import BuildfarmError, Code, MissingToolError
from builder.hashing import digest_of
from builder.images.registry.lock import lock_path
from builder.log import print_line
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.progress.display import Progress
from builder.proof import Proof, Verdict
from builder.proofs.cells.prover import WheelProver
from builder.result import BuildResult
from builder.storage.runs import FinishedTasks
from builder.store import Store, StoredBuild, work_name
from builder.timeline import Recorder, Timeline
from builder.wheels.sources.prepare import source_digest

#: What a client does with workers: from the connection to the jobs that run together.
Jobs = Callable[[Cluster], Awaitable[Sequence[Coroutine[Any, Any, None]]]]


class RemoteRun:
    """Builds and proves the wheels of one run on workers; used like `BuildRun`."""

    def __init__(
        self,
        store: Store,
        prover: WheelProver,
        recipes: Mapping[str, Recipe],
        settings: Settings,
        options: RemoteOptions,
    ) -> None:
        """`prover` runs the checks of wheel files here; those of cells run on workers."""
        self._store = store
        self._prover = prover
        self._recipes = recipes
        self._settings = settings
        self._options = options
        self._uses = Uses(store)
        self._progress = Progress()
        self._recorder = Recorder(store.owner(""))
        self._parcels: dict[str, dict[str, bytes]] = {}
        self._wheels = Wheels(store, store.root)
        self._tasks: dict[Build, BuildTask] = {}
        self._first: frozenset[str] = frozenset()  # digests of the builds that start before the others
        self._titles: set[str] = set()  # names of the builds that are not finished
        self._shown: set[str] = set()
        #: the results so far; after an interrupt, the builds that ended before it
        self.finished: dict[Build, BuildResult] = {}

    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """Each build, and whether the store has its wheel from an earlier run."""
        return {build: self._wheels.known(self._task(build)) is not None for build in builds}

    def build_all(self, builds: Mapping[Build, bool]) -> list[BuildResult]:
        """Build and prove each build once; the results have the order of `builds`, the value of `stored`.

        Raises Unreachable when the scheduler does not answer. A build that fails is a result with its error.
        """
        self._titles = set(map(str, builds))
        self._first = first_builds((self._task(build) for build, there in builds.items() if not there), self._uses)
        with self._store.work(f"remote-{digest_of(time.time())[:12]}") as scratch:
            self._wheels = Wheels(self._store, scratch)
            with self._recorder.recording(), self._progress.shown():
                run_jobs(self._options, self._stage, lambda cluster: self._jobs(cluster, list(builds)))
        return [self.finished[build] for build in builds]

    def timeline(self) -> Timeline:
        """What happened when, until now."""
        return self._recorder.timeline(self._progress.stages())

    async def _jobs(self, cluster: Cluster, builds: Sequence[Build]) -> list[Coroutine[Any, Any, None]]:
        await self._take_finished(cluster, builds)
        return [self._one(cluster, build) for build in builds]

    async def _take_finished(self, cluster: Cluster, builds: Sequence[Build]) -> None:
        """Collect the wheels that workers made for an earlier run, which ended before it got them."""
        wanted = {task.digest: task for task in map(self._task, builds) if self._wheels.known(task) is None}
        for found in await cluster.ask_all(find_finished, list(wanted)) if wanted else ():
            for digest in found.keys() & wanted.keys():  # the Dask workers of one machine have the same store
                with suppress(OSError):
                    await self._wheels.collect(cluster, wanted[digest], found[digest])
                    del wanted[digest]

    async def _one(self, cluster: Cluster, build: Build) -> None:
        """One build from its recipe to its proofs; an error becomes the result, and the other builds go on."""
        name, started = str(build), time.monotonic()
        recipe, log = self._recipes[build.extension], self._store.log(name)
        stored: StoredBuild | None = None
        answer: Answer | None = None
        proofs: list[Proof] = []
        error: BuildfarmError | None = None
        try:
            task = self._task(build)
            stored = await asyncio.to_thread(self._wheels.known, task)
            reused = stored is not None
            if stored is None:
                stored, answer = await self._build(cluster, task, log)
                reused = bool(answer and answer.reused)
            await asyncio.to_thread(FolderBuilds(self._store).remember, build, recipe, stored.digest)
            proofs = await self._prove(cluster, build, recipe, stored, answer, log)
        except BuildfarmError as problem:
            error, reused = problem, False
        failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
        outcome = f"failed: {error or failed[0].check}" if error or failed else "already built" if reused else "built"
        self._titles.discard(name)
        if name not in self._shown:
            self._progress.start(name)
        self._progress.finish(name, outcome)
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

    async def _build(self, cluster: Cluster, task: BuildTask, log: Path) -> tuple[StoredBuild, Answer]:
        """Let a worker build, and collect the wheel; again if all workers that had it are gone."""
        log.write_bytes(b"")
        need = need_of_build(task, self._uses, self._first)
        parts = self._parts(self._recipes[task.build.extension])

        async def lost() -> Answer | None:
            for found in await cluster.ask_all(find_finished, [task.digest]):
                wheel: WheelRef | None = found.get(task.digest)
                if wheel is not None:
                    return Answer(wheel=wheel, reused=True)
            return None

        for _ in range(3):
            answer = await cluster.compute(task, parts, need, lost)
            await fetch_log(cluster, answer, log)
            if answer.failure is not None or answer.wheel is None:
                raise cast("Failure", answer.failure).error(log)
            try:
                stored = await self._wheels.collect(cluster, task, answer.wheel)
            except OSError:
                continue
            keep_locks(self._store.root / "envs", answer.locks)
            self._uses.remember(task.build, answer)
            return stored, answer
        raise MissingToolError(
            f"the workers that built {task.title} were gone before the wheel was copied", Code.WHEEL_LOST
        )

    async def _prove(
        self, cluster: Cluster, build: Build, recipe: Recipe, stored: StoredBuild, answer: Answer | None, log: Path
    ) -> list[Proof]:
        """Prove the wheel on workers, and its file here."""
        subject = await asyncio.to_thread(self._prover.subject, stored, build, recipe)
        again, gpus = self._prover.again, self._options.prove_on
        earlier = await asyncio.to_thread(self._store.proofs, stored.sha256)
        cells = open_cells(earlier, subject, gpus, again=again)
        plan = ProofPlan(
            build,
            recipe,
            self._settings,
            WheelRef.of(stored, answer.wheel.holders if answer and answer.wheel else ()),
            stored.wheel,
            self._parts(recipe),
            gpus,
            tuple(earlier),
            again,
            log,
        )
        made = await prove_cells(cluster, plan, cells)
        return await asyncio.to_thread(self._prover.prove_wheel, subject, log=log, stage=lambda _: None, made=made)

    def _task(self, build: Build) -> BuildTask:
        """The task of a build; its digest covers everything that this machine knows about the build."""
        if build not in self._tasks:
            self._tasks[build] = self._new_task(build)
        return self._tasks[build]

    def _new_task(self, build: Build) -> BuildTask:
        recipe = self._recipes[build.extension]
        source = source_digest(recipe)
        settings = replace(self._settings, matrix=replace(self._settings.matrix, extensions=()))
        matrix, lock = settings.matrix, lock_path(settings.matrix.path)
        digest = digest_of(
            {
                "build": [str(build), build.local_version, [str(arch) for arch in build.archs]],
                "recipe": repr(replace(recipe, folder=Path(), source=None, patches=())),  # type: ignore[arg-type]
                "source": source,
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
            lock, envs = lock_path(self._settings.matrix.path), self._store.root / "envs"
            self._parcels[recipe.name] = dict(named(pack(recipe, lock, locks_in(envs))))
        return self._parcels[recipe.name]

    def _stage(self, title: str, machine: str, stage: str) -> None:
        """Show what a worker does: a line for each build, and one for each cell while its checks run."""
        name, _, cell = title.partition(" in ")
        if name not in self._titles:
            return
        if stage and name not in self._shown:
            self._shown.add(name)
            self._progress.start(name)
        line = title if cell else name
        if cell and stage and line not in self._shown:
            self._shown.add(line)
            self._progress.start(line)
            self._progress.stage(name, "prove in its cells")
        if stage:
            self._progress.stage(line, stage.partition(" in torch")[0], machine)
        elif cell and line in self._shown:
            self._shown.discard(line)
            self._progress.finish(line, "")


class Wheels:
    """The wheels of the client's store, by the task that made them."""

    def __init__(self, store: Store, scratch: Path) -> None:
        """`scratch` is a folder for files that are not complete."""
        self._store = store
        self._finished = FinishedTasks(store.root)
        self._scratch = scratch

    def known(self, task: BuildTask) -> StoredBuild | None:
        """The wheel that an earlier run got for this task, or None."""
        digest = self._finished.build_of(task.digest)
        return self._store.take(digest) if digest else None

    async def collect(self, cluster: Cluster, task: BuildTask, wheel: WheelRef) -> StoredBuild:
        """The wheel in the client's store, copied from the worker that made it; raises OSError if no worker has it."""
        stored = await asyncio.to_thread(self._store.take, wheel.digest)
        if stored is None:
            partial = self._scratch / f"{uuid4().hex}-{wheel.filename}"
            try:
                await fetch_wheel(cluster, wheel, partial)
                stored = await asyncio.to_thread(self._add, wheel, partial)
            finally:
                partial.unlink(missing_ok=True)
        self._finished.remember(task.digest, stored.digest)
        return stored

    def _add(self, wheel: WheelRef, partial: Path) -> StoredBuild:
        with self._store.work(work_name(wheel.digest)) as work:
            if stored := self._store.take(wheel.digest):
                return stored
            named = work / wheel.filename
            partial.rename(named)
            return self._store.add(wheel.digest, named, wheel.record)


def run_jobs(options: RemoteOptions, on_stage: Callable[[str, str, str], None], jobs: Jobs) -> None:
    """Connect to the scheduler and run the jobs together; `on_stage` is as in `Cluster`.

    Raises UnreachableError when the scheduler does not answer, what a job raises, and KeyboardInterrupt after a signal:
    the workers have been told to end their tasks then.
    """
    asyncio.run(_run(options, on_stage, jobs))


async def _run(options: RemoteOptions, on_stage: Callable[[str, str, str], None], jobs: Jobs) -> None:
    main = cast("asyncio.Task[None]", asyncio.current_task())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, main.cancel)
    try:
        async with Cluster(options.scheduler, patience=options.patience, on_stage=on_stage) as cluster:
            if cluster.dashboard:
                print_line(f"Dask's dashboard: {cluster.dashboard}")
            tasks = [asyncio.create_task(job) for job in await jobs(cluster)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
