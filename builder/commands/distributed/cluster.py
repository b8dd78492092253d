"""The connection to a Dask scheduler: it survives a scheduler that ends and comes back, and names what is missing."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from distributed import Client, Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from builder.commands.distributed.connection import CONNECT_SECONDS, UnreachableError, connect, quiet_dask, security_for
from builder.commands.distributed.protocol import (
    BUILDS,
    MANY,
    PLUGIN,
    PROOFS,
    TOPIC,
    Answer,
    BuildTask,
    Failure,
    Task,
    WheelRef,
    version_resource,
    version_text,
)
from builder.commands.distributed.worker.service import find_finished, keep, run_task
from builder.errors import Code
from builder.hashing import digest_of
from builder.log import print_line, print_warning
from builder.matrix.compat import and_list

# Which tasks end the worker that runs them.
#
# Dask blames a death on every task that was assigned to the worker, also on those that only waited there. Here a death
# counts for the tasks that had started and not ended. When it could be one of several, the task runs again with no
# other beside it.

#: How often a worker may end while it runs a task.
DEATHS = 3


class Deaths:
    """How often workers ended while they ran each task: a run of a task that has no end counts as a death."""

    def __init__(self) -> None:
        self._open: defaultdict[str, set[str]] = defaultdict(set)  # by the key of a task: runs without an end

    def started(self, key: str, run: str) -> int:
        """Note that a worker starts to run a task; return how often workers ended while they ran it before."""
        self._open[key].add(run)
        return len(self._open[key]) - 1

    def ended(self, key: str, run: str) -> None:
        """Note that a worker ran a task to its end, or was told to stop it."""
        self._open[key].discard(run)

    def of(self, key: str) -> int:
        """How often workers ended while they ran a task; it does not run now."""
        return len(self._open[key])

    def clear(self) -> None:
        """Forget every run, because the scheduler ended and workers stopped their tasks."""
        self._open.clear()


# How many tasks a client gives to Dask at the same time.
#
# Dask sends each task with resources to a worker at once, and looks at all those that wait there again and again to
# balance the workers: the time of a look grows with the tasks times the workers. So a client submits AHEAD times as
# many tasks as the workers can run, and the next one when one ends.

#: Tasks that are submitted for each one that can run. Of 1, 1.5, 4 and any number, 4 had the shortest makespan:
#: `python -m tests.benchmarks.distributed_scale`. Dask sends some tasks to a worker that is busy, and moves them later.
AHEAD = 4


@dataclass(frozen=True)
class Need:
    """What a task needs of a worker."""

    #: Dask resources, the amount of each.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: The task with the highest starts first.
    priority: float = 0
    #: What to say of a worker that offers too little of a resource, by the resource's name.
    reasons: Mapping[str, str] = field(default_factory=dict)
    #: Whether to wait for a worker that can run the task, if there is none now.
    waits: bool = True


@dataclass
class _Line:
    """The tasks that need the same resources."""

    #: How many may be submitted at the same time; 0: any number.
    limit: int = 0
    #: How many are.
    submitted: int = 0
    #: The others, the highest priority first.
    waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)

    def admit(self) -> None:
        """Let waiting tasks be submitted, as far as the limit allows."""
        while self.waiting and (not self.limit or self.submitted < self.limit):
            _, _, turn = heapq.heappop(self.waiting)
            if not turn.done():  # not given up
                turn.set_result(None)
                self.submitted += 1


class Window:
    """Admits tasks by priority, so many of each kind of need as the workers can run, times AHEAD."""

    def __init__(self) -> None:
        self._lines: dict[frozenset[str], _Line] = {}
        self._workers: Mapping[str, Mapping[str, Any]] = {}
        self._number = count()

    def look(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the workers that there are now, by address; each has its `resources`."""
        self._workers = workers
        for names, line in self._lines.items():
            line.limit = self._limit(names)
            line.admit()

    @asynccontextmanager
    async def place(self, need: Need) -> AsyncIterator[None]:
        """Wait until a task may be submitted; it ends with the block. A task that no worker can run may be at once."""
        names = frozenset(need.resources)
        line = self._lines.get(names)
        if line is None:
            line = self._lines[names] = _Line(self._limit(names))
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(line.waiting, (-need.priority, next(self._number), turn))
        line.admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                line.submitted -= 1
            line.admit()

    def _limit(self, names: frozenset[str]) -> int:
        """How many tasks with these resources may be submitted: by the builds or proofs of the workers that can.

        Tasks that wait and need more resources, such as Docker, keep their places on the workers that have these, if
        there are other places.
        """
        special = [other for other, line in self._lines.items() if names < other and line.waiting]
        able = [worker["resources"] for worker in self._workers.values() if _has(worker["resources"], names)]
        kinds = names & {BUILDS, PROOFS}
        places = sum(offer.get(kind, 0) for offer in able for kind in kinds)
        free = sum(max(0, offer.get(kind, 0) - _kept(offer, special, names)) for offer in able for kind in kinds)
        return AHEAD * int(free or places)


def _has(offer: Mapping[str, float], names: frozenset[str]) -> bool:
    return all(offer.get(name) for name in names)


def _kept(offer: Mapping[str, float], special: Sequence[frozenset[str]], names: frozenset[str]) -> float:
    """How many of the special tasks a worker can run at the same time, by what they need more than `names`."""
    return sum(min(offer[name] for name in other - names) for other in special if _has(offer, other))


# What to say when no worker can run a task.

#: How many workers a message names of those that lack the same.
_NAMES = 3
#: The answer for a task that ends its workers.
DEADLY = Answer(
    failure=Failure(
        "BuildfarmError",
        f"{DEATHS} workers ended while they ran it, the last of them without another task",
        Code.WORKER_STOPPED,
        hints=("see whether it ends processes that are not its own, or uses up the memory of the machine",),
    )
)


def missing(task: Task, need: Need, workers: Mapping[str, Mapping[str, Any]], foreign: Sequence[str]) -> Answer:
    """The answer that says what each worker lacks for a task.

    `workers` are those of the same version, and `foreign` is what is to say about the others.
    """
    hints = ["start a worker that can with `buildfarm worker`; `--worker-timeout` says how long to wait for one"]
    lacks: dict[str, list[str]] = {}
    kinds = need.resources.keys() & {BUILDS, PROOFS}
    for worker in workers.values():
        if not kinds <= worker["resources"].keys():
            continue  # the other Dask worker of the same machine
        names = [name for name, amount in need.resources.items() if worker["resources"].get(name, 0) < amount]
        reasons = [need.reasons.get(name, f"too little of {name}") for name in names]
        if isinstance(task, BuildTask) and (compiler := worker[PLUGIN].get("compilers", {}).get(str(task.build.cuda))):
            reasons = [reason.replace(f"no CUDA {task.build.cuda} toolkit", compiler) for reason in reasons]
        lacks.setdefault(" and ".join(reasons), []).append(worker[PLUGIN]["name"])
    sentence = f"no worker can run {_name(task)}: {'; '.join(_have(names, reason) for reason, names in lacks.items())}"
    if not lacks:
        sentence = f"no worker with buildfarm {version_text()} is connected to the scheduler"
        if foreign:
            sentence += f": {'; '.join(foreign)}"
            hints = ["install the same version of buildfarm here and on the workers"]
    return Answer(failure=Failure("MissingToolError", sentence, Code.NO_WORKER, hints=tuple(hints)))


def other_version(worker: Mapping[str, Any]) -> str:
    """What is to say about a worker of another version, or without buildfarm."""
    facts = worker.get(PLUGIN)
    name = facts["name"] if facts else worker["name"]
    return f"the worker {name} has {'buildfarm ' + facts['version'] if facts else 'no buildfarm'}"


def _have(names: Sequence[str], lack: str) -> str:
    """`w1 has LACK`, `w1, w2 and 5 others have LACK`."""
    shown, more = sorted(names)[:_NAMES], len(names) - _NAMES
    if more > 0:
        shown.append("1 other" if more == 1 else f"{more} others")
    return f"{and_list(shown)} {'has' if len(names) == 1 else 'have'} {lack}"


def nobody(task: Task, tried: Mapping[str, Answer]) -> Answer:
    """The last answer, with the reasons of all workers that failed; paths and hints are about their machines."""
    last = list(tried.values())[-1]
    failure = cast("Failure", last.failure)
    reasons: dict[str, list[str]] = {}
    for answer in tried.values():
        reasons.setdefault(str(cast("Failure", answer.failure).error()), []).append(answer.machine)
    each = "; ".join(f"{and_list(sorted(machines))}: {reason}" for reason, machines in reasons.items())
    sentence = f"no worker could run {_name(task)}: {each}"
    hints = tuple(f"on {last.machine}: {hint}" for hint in failure.hints)
    return replace(last, failure=replace(failure, sentence=sentence, where="", hints=hints))


def _name(task: Task) -> str:
    """A task in an error, which is printed once for all the builds, or cells, that it stops."""
    if isinstance(task, BuildTask):
        return "this build"
    return f"checks for {task.gpu}" if task.gpu else "these checks"


#: Seconds between two looks at the workers.
LOOK_SECONDS = 2.0
#: Seconds that the workers get to come back after their scheduler.
SECONDS_TO_RETURN = 15.0
#: Seconds to wait for a worker of this version, if workers of other versions are connected.
SECONDS_FOR_VERSION = 5.0
#: Where Dask's scheduler keeps the notes among its metadata.
_NOTES = "buildfarm-builds"
#: What Dask raises when the scheduler or the worker is gone, or the client is closed to connect again.
_LOST = (OSError, RuntimeError)


class Cluster:
    """The workers of one scheduler that have the same version of buildfarm as this process."""

    def __init__(
        self,
        address: str,
        *,
        patience: float,
        on_stage: Callable[[str, str, str], None],
        function: Callable[..., Answer] = run_task,
    ) -> None:
        """Connect to nothing yet.

        `patience` is how many seconds to wait for a scheduler that ended, and for a worker that can run a task.
        `on_stage` gets the title of a task, the name of a machine and the stage; an
        empty stage is the end of the task. `function` runs a task on a worker.
        """
        self.address = address
        self._patience = patience
        self._on_stage = on_stage
        self._function = function
        self._security = security_for(address)
        self._parts: dict[str, Future[bytes]] = {}
        self._deaths = Deaths()
        self._suspects: dict[str, int] = {}  # by the key of a task that was stopped: how many workers it ended
        self._alone: set[str] = set()  # keys of tasks that run with no other task beside them
        self._foreign: list[str] = []  # what is to say about workers of other versions
        self._restoring = asyncio.Lock()
        self._warned: set[str] = set()
        self._workers: dict[str, dict[str, Any]] = {}
        self._window = Window()
        self._seen = 0  # the largest number of workers so far
        self._pending: dict[str, _Pending] = {}
        self._stuck: set[str] = set()  # keys of tasks that no worker could run for too long

    async def __aenter__(self) -> Cluster:
        quiet_dask()
        self._client = await self._connect()
        await self.refresh()
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give up every task that still runs: the workers end their processes."""
        self._looking.cancel()
        with suppress(Exception):
            await asyncio.wait_for(self._client.close(), CONNECT_SECONDS)  # type: ignore[no-untyped-call]

    @property
    def dashboard(self) -> str:
        """The URL of Dask's dashboard."""
        return str(self._client.dashboard_link or "")

    @property
    def _scheduler(self) -> Any:  # noqa: ANN401 - Dask makes its methods from the names of remote ones
        return self._client.scheduler

    async def _connect(self) -> Client:
        """Raises UnreachableError."""
        client = await connect(self.address, self._security)
        client.subscribe_topic(TOPIC, self._event)  # type: ignore[no-untyped-call]
        return client

    async def _event(self, event: tuple[float, Any]) -> None:
        """Take a report of a worker."""
        about = event[1]
        if about["stage"] == "start":
            await self._started(about["key"], about["run"])
        elif about["stage"] == "end":
            self._deaths.ended(about["key"], about["run"])
        elif about["key"] in self._pending:  # another client's tasks are reported too
            self._on_stage(about["title"], about["machine"], about["stage"])

    async def _started(self, key: str, run: str) -> None:
        """Count a start; stop a task that ended too many workers, or ended some and runs beside others."""
        deaths, pending = self._deaths.started(key, run), self._pending.get(key)
        if pending and (deaths >= DEATHS or (deaths == DEATHS - 1 and key not in self._alone)):
            self._deaths.ended(key, run)
            self._suspects[key] = deaths
            await pending.future.cancel()  # type: ignore[no-untyped-call]

    async def refresh(self) -> Mapping[str, Mapping[str, Any]]:
        """What Dask and buildfarm say about each worker of the same version, by its address; asks the scheduler."""
        identity = await self._scheduler.identity(n_workers=-1)
        found: dict[str, dict[str, Any]] = identity["workers"]
        self._workers = {a: worker for a, worker in found.items() if version_resource() in worker["resources"]}
        self._foreign = sorted({other_version(found[address]) for address in found.keys() - self._workers.keys()})
        for words in self._foreign:
            if words not in self._warned:
                self._warned.add(words)
                print_warning(f"{words}, and this is buildfarm {version_text()}; it gets no task")
        self._seen = max(self._seen, len(self._workers))
        self._window.look(self._workers)
        return self._workers

    async def call(self, address: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Call a function on one worker now. Raises OSError when the worker is gone, and what the function raises."""
        answers = await self._client.run(function, *arguments, workers=[address], on_error="return")
        answer = answers.get(address, OSError("the worker is gone"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask_all(self, function: Callable[..., Any], *arguments: object) -> list[Any]:
        """Call a function on every worker of the same version; without the answers of those that fail."""
        addresses = list(self._workers)
        if not addresses:
            return []
        answers = await self._client.run(function, *arguments, workers=addresses, on_error="return")
        return [answer for answer in answers.values() if not isinstance(answer, Exception)]

    async def compute(
        self,
        task: Task,
        parts: Mapping[str, bytes],
        need: Need,
        lost: Callable[[], Awaitable[Answer | None]] | None = None,
    ) -> Answer:
        """Let a worker run a task.

        The answer says why if no worker can. A worker that cannot run the task, for example because its disk is full,
        is left out, and the next one tries. `lost` is asked for the answer after the scheduler ended. Raises
        UnreachableError if it does not come back.
        """
        if not need.waits and not self._able(need):
            return missing(task, need, self._workers, self._foreign)
        async with self._window.place(need):
            if self._restoring.locked():
                async with self._restoring:  # the client is closed until the scheduler is back
                    pass
            if isinstance(task, BuildTask) and (answer := await find(self._client, self.call, task)):
                return answer
            return await self._computed(task, parts, need, lost)

    async def _computed(
        self, task: Task, parts: Mapping[str, bytes], need: Need, lost: Callable[[], Awaitable[Answer | None]] | None
    ) -> Answer:
        """Let a worker run a task that may be submitted now."""
        tried: dict[str, Answer] = {}
        while True:
            able = [address for address in self._able(need) if address not in tried] if tried else None
            if able == []:
                return nobody(task, tried)
            try:
                answer = await self._submitted(task, parts, need, able)
            except FutureCancelledError:
                if task.key in self._stuck:
                    return missing(task, need, self._workers, self._foreign)
                if task.key in self._suspects:
                    if self._suspects.pop(task.key) >= DEATHS:
                        return DEADLY
                    self._alone.add(task.key)
                    continue
                await self._restored()
                if lost and (known := await lost()):
                    return known
                continue
            except KilledWorker:
                if (deaths := self._deaths.of(task.key)) >= DEATHS:
                    return DEADLY
                if deaths == DEATHS - 1:
                    self._alone.add(task.key)
                await asyncio.sleep(0.1)  # Dask forgets the failed future in a turn of the loop
                continue
            if answer.failure is None or not answer.failure.machine or not answer.worker:
                return answer
            tried[answer.worker] = answer
            if not set(self._able(need)) - tried.keys():
                return nobody(task, tried)
            print_warning(f"{answer.machine}: {task.title}: {answer.failure.error()}; another worker gets it")

    async def _submitted(
        self, task: Task, parts: Mapping[str, bytes], need: Need, workers: Sequence[str] | None
    ) -> Answer:
        """Submit a task once, to one of these workers or to any, and wait for its answer."""
        key = task.key if workers is None else f"{task.key}-{digest_of(sorted(workers))[:8]}"
        alone = task.key in self._alone
        future = self._client.submit(
            self._function,
            task,
            *(self._part(name, data) for name, data in parts.items()),
            key=f"{key}-alone" if alone else key,  # a worker may still end the run that was stopped
            resources={**need.resources, version_resource(): MANY if alone else 1},
            priority=need.priority,
            workers=list(workers) if workers is not None else None,
        )
        self._pending[task.key] = _Pending(future, need)
        try:
            answer = cast("Answer", await future)
            if isinstance(task, BuildTask):
                await note(self._client, task, answer)  # before Dask forgets the task
            return answer
        finally:
            self._pending.pop(task.key, None)
            self._on_stage(task.title, "", "")
            future.release()  # type: ignore[no-untyped-call]

    def _part(self, name: str, data: bytes) -> Future[bytes]:
        """The future of one part of a recipe; all tasks share it."""
        found = self._parts.get(name)
        if found is None or found.status in ("cancelled", "lost", "error"):
            found = self._client.submit(keep, data, key=name, resources={version_resource(): 1}, priority=1e9)
            self._parts[name] = found
        return found

    def _able(self, need: Need) -> list[str]:
        """The workers that offered what a task needs at the last look."""
        return [
            address
            for address, worker in self._workers.items()
            if all(worker["resources"].get(name, 0) >= amount for name, amount in need.resources.items())
        ]

    async def _look(self) -> None:
        """Look at the workers again and again; give up the tasks that no worker could run for too long."""
        since: dict[str, float] = {}  # by the key of a task: when nobody could run it for the first time
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(OSError):
                await self.refresh()
            only_foreign = self._foreign and not self._workers
            patience = min(self._patience, SECONDS_FOR_VERSION) if only_foreign else self._patience
            able: dict[tuple[tuple[str, float], ...], bool] = {}
            for key, pending in list(self._pending.items()):
                resources = tuple(sorted(pending.need.resources.items()))
                if resources not in able:
                    able[resources] = bool(self._able(pending.need))
                if able[resources]:
                    since.pop(key, None)
                elif time.monotonic() - since.setdefault(key, time.monotonic()) >= patience:
                    self._stuck.add(key)
                    await pending.future.cancel()  # type: ignore[no-untyped-call]

    async def _restored(self) -> None:
        """Wait until the scheduler answers again, and its workers are back. Raises UnreachableError."""
        async with self._restoring:
            with suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._scheduler.identity(n_workers=0), LOOK_SECONDS)
                return
            print_warning(f"lost the scheduler at {self.address}; waiting until it comes back")
            with suppress(Exception):
                await asyncio.wait_for(self._client.close(), CONNECT_SECONDS)  # type: ignore[no-untyped-call]
            self._parts = {}
            self._deaths.clear()
            deadline = time.monotonic() + self._patience
            while True:
                try:
                    self._client = await self._connect()
                    break
                except UnreachableError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(1)
            print_line(f"connected to {self.address} again")
            back = time.monotonic() + min(self._patience, SECONDS_TO_RETURN)
            while len(self._workers) < self._seen and time.monotonic() < back:
                await asyncio.sleep(0.5)
                await self.refresh()


@dataclass(frozen=True)
class _Pending:
    """A task that was submitted."""

    future: Future[Answer]
    need: Need


async def note(client: Client, task: BuildTask, answer: Answer) -> None:
    """Note the worker that made a build."""
    if answer.wheel is not None:
        with suppress(*_LOST):
            await client.set_metadata([_NOTES, task.digest], answer.worker)  # type: ignore[no-untyped-call]


async def find(client: Client, call: Callable[..., Awaitable[Any]], task: BuildTask) -> Answer | None:
    """The answer with the wheel of a build, if a worker has it; `call` is `Cluster.call`."""
    with suppress(*_LOST):
        worker = await client.get_metadata([_NOTES, task.digest], None)  # type: ignore[no-untyped-call]
        if worker is not None:
            found: Mapping[str, WheelRef] = await call(worker, find_finished, [task.digest])
            if wheel := found.get(task.digest):
                return Answer(worker, wheel=wheel, reused=True)
    return None
