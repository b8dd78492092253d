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
from builder.images.lock import lock_path, read_lock
from builder.images.presence import why_not_here
from builder.images.specs import Choice
from builder.log import Progress, say, warn
from builder.matrix.axes import Arch
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule, Matrix, Recipe, Select
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
from builder.turns import Turns
from builder.wheels.build import Executor, Job, Toolchain, build_digest
from builder.wheels.environment import Environments
from builder.wheels.local import LocalExecutor
from builder.wheels.make import make_wheel
from builder.wheels.place import clear_abandoned
from builder.wheels.source import source_digest


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
    matrix = with_base(matrix, options.image)
    _check_dist(options.dist)
    store = open_store(options.store)
    store.clear_abandoned()
    clear_abandoned()
    environments = Environments(store, matrix.torch_index)
    executor = choose_executor(options, matrix, plan, recipes, store, environments)
    # A wheel that was built beside a newer C library than this machine's is seen where it was built for.
    prover = CellProver(store, environments, matrix if executor.name == "docker" else None)
    farm = _Farm(options, store, executor, prover, recipes)
    results = farm.build_all(plan.builds)
    handed = hand_over(options.dist, plan, results)
    try:
        write_index(options.dist, sorted(options.dist.glob("*.whl")))
    except UsageError as error:  # somebody else's file; what was built here is served all the same
        warn(f"{error}; the index lists this run's wheels alone")
        write_index(options.dist, handed)
    return plan, results


def with_base(matrix: Matrix, image: str | None) -> Matrix:
    """The matrix with a base image in place of those it names; what else its rules say stays."""
    if image is None:
        return matrix
    rules = (*matrix.images, ImageRule("*", ""))
    return replace(matrix, images=tuple(replace(rule, image=image) for rule in rules))


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
    packages: Sequence[str] = (),
) -> Executor:
    """The executor asked for; `auto` takes docker when the base images are here and fit these builds, else local.

    `packages` are exact requirements to build with, in place of what the recipes' resolve to.
    """
    local = LocalExecutor(environments, stand_in=options.stand_in, packages=packages)
    if options.executor == "local":
        if options.image:
            warn("`--image` says nothing to `--executor local`")
        return local
    choice = Choice(matrix, Compat.load(), read_lock(lock_path(options.matrix)), stand_in=options.stand_in)
    if options.executor == "auto" and (reason := _why_not_docker(choice, plan)):
        say(f"executor: local ({reason})")
        return local
    # The docker SDK and jinja2 take a while to load, and a local run has no use for them.
    from builder.wheels.docker import DockerExecutor  # noqa: PLC0415

    docker = DockerExecutor(environments, store, choice, packages=packages)
    if options.executor == "docker":
        return docker
    problems = docker.problems(plan.builds, recipes)
    if problems:
        say(f"executor: local ({problems[0]})")
        return local
    say("executor: docker (the base images are here)")
    return docker


def _why_not_docker(choice: Choice, plan: Plan) -> str | None:
    """Why `auto` does not take docker: a build without a known image, or a base image that would have to be pulled."""
    try:
        bases = dict.fromkeys(base for build in plan.builds for base in choice.build_image(build).bases)
    except UsageError as error:
        return error.sentence
    return why_not_here(list(bases)) if bases else "there is nothing to build"


class _Farm:
    """One run: what its builds share."""

    def __init__(
        self,
        options: Options,
        store: Store,
        executor: Executor,
        prover: CellProver,
        recipes: Mapping[str, Recipe],
    ) -> None:
        self._options = options
        self._store = store
        self._executor = executor
        self._recipes = recipes
        self._progress = Progress()
        self._prover = prover
        self._share = Share()
        self._turns = Turns(())

    def build_all(self, builds: Sequence[Build]) -> list[Result]:
        """Each build once, several at a time where cores and memory allow; in the plan's order."""
        missing = [build for build in builds if not self._kept(build)]
        self._share = preflight(missing, self._recipes, self._executor, self._store, self._options.jobs)
        self._turns = Turns(missing if self._executor.shares_objects else ())
        with self._progress.shown(), ThreadPoolExecutor(self._share.builds) as pool:
            futures = {pool.submit(self._run_one, build): build for build in self._turns.ordered(builds)}
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

    def _run_one(self, build: Build) -> Result:
        """One build; whoever waits for its objects goes on afterwards, however it ended."""
        try:
            return self._build_one(build)
        finally:
            self._turns.release(build)

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
            stored = self._store.find(self._digest(build, toolchain))
            reused = stored is not None
            if stored is None:
                with self._turns.turn(build):
                    digest = self._digest(build, toolchain)  # a source may have changed while it waited
                    stored = self._make(build, recipe, toolchain, digest, log)
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
        name = str(build)

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
            jobs = self._turns.jobs(build, builds=self._share.builds, jobs=self._share.jobs)
            job = Job(build, recipe, toolchain, work / "src", work, log, jobs, digest, mark)
            wheel, record = make_wheel(
                job, self._executor, stage, cache=self._store.root / "sources", stand_in=self._options.stand_in
            )
            if build_digest(build, recipe, toolchain, record["source"]["digest"]) != digest:
                raise UsageError(
                    "the source changed while its build waited; nothing of it was kept",
                    where=str(recipe.folder),
                    hints=["run it again"],
                )
            return self._store.add(digest, wheel, record)
