"""The story: plan, preflight, build what the store lacks, prove every cell, hand over. Readable aloud."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.errors import FarmError, UsageError
from builder.images.choice import base_image, why_not_here
from builder.log import Progress, say, warn
from builder.matrix.axes import Arch
from builder.matrix.config import Matrix, Recipe, Select
from builder.matrix.declaration import read_plan
from builder.matrix.plan import Build, Plan
from builder.preflight import Share, preflight
from builder.process import Interrupted, end_all
from builder.proof import Verdict
from builder.proofs.cells import CellProver
from builder.publish.index import write_index
from builder.publish.report import hand_over
from builder.result import Result
from builder.store import Store, Stored, default_store, job_name
from builder.wheels.build import Executor, Job, Toolchain, build_digest, torch_window
from builder.wheels.environment import Environments
from builder.wheels.local import LocalExecutor
from builder.wheels.repair import repair
from builder.wheels.source import prepare_source, source_digest


@dataclass(frozen=True)
class Options:
    """What a person asked of one run."""

    matrix: Path
    select: Select = field(default_factory=Select)
    archs: tuple[Arch, ...] = ()
    executor: str = "auto"
    image: str | None = None
    jobs: int | None = None
    stand_in: bool = False
    store: Path | None = None
    dist: Path = Path("dist")


def run_build(options: Options) -> tuple[Plan, list[Result]]:
    """The main job: from a declaration to wheels in `dist/`, proven as far as this machine can."""
    matrix, recipes, plan = read_plan(options.matrix, options.select, options.archs)
    if options.image:
        matrix = replace(matrix, images=(("*", options.image),))
    _check_dist(options.dist)
    store = open_store(options.store)
    store.clear_abandoned()
    environments = Environments(store, matrix.torch_index)
    executor = choose_executor(options, matrix, plan, recipes, store, environments)
    farm = _Farm(options, store, executor, environments, recipes)
    results = farm.build_all(plan.builds)
    handed = hand_over(options.dist, plan, results)
    try:
        write_index(options.dist, sorted(options.dist.glob("*.whl")))
    except UsageError as error:  # somebody else's file; what was built here is served all the same
        warn(f"{error}; the index lists this run's wheels alone")
        write_index(options.dist, handed)
    return plan, results


def _check_dist(dist: Path) -> None:
    """Whether wheels can be put there, asked before anything is built for it."""
    try:
        dist.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=dist):
            pass
    except OSError as error:
        raise UsageError(
            f"wheels cannot be put there: {error.strerror}",
            where=str(dist),
            hints=["`--dist DIR` names another folder"],
        ) from None


def open_store(root: Path | None) -> Store:
    """The store, or a sentence about why it cannot be used."""
    root = (root or default_store()).expanduser().absolute()
    if re.search(r"[^\w@%+=:,./~-]", str(root)):
        raise UsageError(
            "the store's path holds a character that torch's build rules do not quote (a space, say)",
            where=str(root),
            hints=["`--store DIR` or BUILDFARM_STORE names another folder; sources and dist/ may lie anywhere"],
        )
    try:
        return Store(root)
    except OSError as error:
        raise UsageError(
            f"the store cannot be used: {error.strerror}",
            where=str(root),
            hints=["`--store DIR` or BUILDFARM_STORE names another folder"],
        ) from None


def choose_executor(
    options: Options,
    matrix: Matrix,
    plan: Plan,
    recipes: Mapping[str, Recipe],
    store: Store,
    environments: Environments,
) -> Executor:
    """The executor asked for; `auto` takes docker when the base images are here and fit these builds, else local."""
    local = LocalExecutor(environments, stand_in=options.stand_in)
    if options.executor == "local":
        if options.image:
            warn("`--image` says nothing to `--executor local`")
        return local
    if options.executor == "auto":
        bases = dict.fromkeys(base_image(build, matrix.images) for build in plan.builds)
        if reason := next(filter(None, map(why_not_here, bases)), None):
            say(f"executor: local ({reason})")
            return local
    # The docker SDK and jinja2 take a while to load, and a local run has no use for them.
    from builder.wheels.docker import DockerExecutor  # noqa: PLC0415

    docker = DockerExecutor(environments, store, matrix.images)
    if options.executor == "docker":
        return docker
    problems = docker.problems(plan.builds, recipes)
    if problems:
        say(f"executor: local ({problems[0]})")
        return local
    say("executor: docker (the base images are here)")
    return docker


class _Farm:
    """One run: what its builds share."""

    def __init__(
        self,
        options: Options,
        store: Store,
        executor: Executor,
        environments: Environments,
        recipes: Mapping[str, Recipe],
    ) -> None:
        self._options = options
        self._store = store
        self._executor = executor
        self._recipes = recipes
        self._progress = Progress()
        self._prover = CellProver(store, environments)
        self._share = Share()

    def build_all(self, builds: Sequence[Build]) -> list[Result]:
        """Each build once, several at a time where cores and memory allow; in the plan's order."""
        missing = [build for build in builds if not self._kept(build)]
        self._share = preflight(missing, self._recipes, self._executor, self._store, self._options.jobs)
        with self._progress.shown(), ThreadPoolExecutor(self._share.builds) as pool:
            futures = {pool.submit(self._build_one, build): build for build in builds}
            try:
                done = {futures[future]: future.result() for future in as_completed(futures)}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise
        return [done[build] for build in builds]

    def _digest(self, build: Build, toolchain: Toolchain) -> str:
        recipe = self._recipes[build.extension]
        source = source_digest(recipe, cache=self._store.root / "sources")
        return build_digest(build, recipe, toolchain, source)

    def _kept(self, build: Build) -> bool:
        """Whether the store has this very build, told without making or asking for anything."""
        try:
            toolchain = self._executor.known_toolchain(build, self._recipes[build.extension])
            return toolchain is not None and self._store.find(self._digest(build, toolchain)) is not None
        except FarmError:  # the preflight says it, with everything else that is wrong
            return False

    def _build_one(self, build: Build) -> Result:
        """One build from its recipe to its proofs; a failure is its result, not the run's end."""
        name, started = str(build), time.monotonic()
        log = self._store.log(name)
        self._progress.start(name, log)
        toolchain: Toolchain | None = None
        stored: Stored | None = None
        try:
            self._progress.stage(name, "resolve")
            recipe = self._recipes[build.extension]
            toolchain = self._executor.toolchain(build, recipe, log=log)
            digest = self._digest(build, toolchain)
            stored = self._store.find(digest)
            reused = stored is not None
            stored = stored or self._make(build, recipe, toolchain, digest, log)
            proofs = self._prover.prove(
                stored, build, recipe, log=log, stage=lambda text: self._progress.stage(name, text)
            )
        except FarmError as error:
            self._progress.finish(name, f"failed: {error}")
            seconds = time.monotonic() - started
            return Result(build, stored, error, reused=False, seconds=seconds, toolchain=toolchain)
        except Interrupted:
            self._progress.finish(name, "failed: interrupted")
            raise
        failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
        outcome = f"failed: {failed[0].check}" if failed else "already built" if reused else "built"
        self._progress.finish(name, outcome)
        seconds = time.monotonic() - started
        return Result(build, stored, None, reused=reused, seconds=seconds, toolchain=toolchain, proofs=tuple(proofs))

    def _make(self, build: Build, recipe: Recipe, toolchain: Toolchain, digest: str, log: Path) -> Stored:
        """Source, compile, repair, store; once, however many farms share the store."""
        name, started = str(build), time.monotonic()

        def stage(text: str) -> None:
            self._progress.stage(name, text)

        mark = self._store.mark(job_name(digest))
        with self._store.lock(job_name(digest), wait=False) as free:
            if not free:
                stage("wait for another farm that makes the same")
        with self._store.work(job_name(digest)) as work:
            if stored := self._store.find(digest):  # another farm made it while this one waited
                return stored
            log.write_bytes(b"")
            stage("fetch")
            source = work / "src"
            source.mkdir()
            prepare_source(recipe, source, cache=self._store.root / "sources")
            job = Job(build, recipe, toolchain, source, work, log, self._share.jobs, digest, mark)
            raw = self._executor.compile(job, stage)
            stage("repair")
            provided = self._executor.libraries(job)
            made_by = {
                "build": name,
                "abi": str(build.abi),
                "archs": [str(arch) for arch in build.archs],
                "executor": toolchain.executor,
                "toolchain": dict(toolchain.parts),
            }
            wheel = repair(
                raw,
                work / "wheel",
                provided=provided,
                local_version=build.local_version,
                torch_requirement=torch_window(build),
                requires=recipe.requires,
                made_by=made_by,
                log=log,
                job=mark,
            )
            record = made_by | {
                "provided": sorted(provided),
                "jobs": job.jobs,
                "seconds": round(time.monotonic() - started, 1),
            }
            return self._store.add(digest, wheel, record)
