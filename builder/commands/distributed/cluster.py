"""The workers of a Dask scheduler: which can run a task, and what happens when a worker or the scheduler ends."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from distributed import Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from builder.commands.distributed import protocol
from builder.commands.distributed.connection import CONNECT_SECONDS, UnreachableError, connect, quiet_dask, security_for
from builder.commands.distributed.protocol import BuildTask, SentWheel, Task, WorkerAnswer, version_resource
from builder.commands.distributed.worker.service import CHUNK, keep, run_task, serve
from builder.errors import BuildfarmError, Code, MissingToolError
from builder.hashing import digest_of
from builder.log import print_line, print_warning
from builder.matrix.compat import and_list

#: How often a worker may end while it runs a task.
DEATHS = 3
#: How many workers try a task that they cannot run, for example because their disk is full.
TRIES = 3
#: Seconds between two looks at the workers.
LOOK_SECONDS = 2.0
#: Seconds that the workers get to come back after their scheduler.
SECONDS_TO_RETURN = 15.0
#: Seconds to wait for a worker of this version, if workers of other versions are connected.
SECONDS_FOR_VERSION = 5.0
#: How many workers a message names of those that lack the same.
_NAMES = 3
#: How many wheels move at the same time: in parts, which the scheduler passes on.
_MOVES = 4


@dataclass
class _Pending:
    """A task that has no answer yet."""

    task: Task
    #: The files of its recipe.
    parts: Mapping[str, bytes]
    #: The only workers that may run it; None: any.
    workers: list[str] | None = None
    future: Future[WorkerAnswer] | None = None
    #: Runs of the task that started and did not end. All but the last one were on workers that ended.
    runs: set[str] = field(default_factory=set)
    #: Whether this client stopped it, to submit it again.
    stopped: bool = False
    #: Whether it runs with no other task beside it.
    alone: bool = False
    #: Since when no worker could run it; 0: some worker can.
    since: float = 0.0
    #: Whether that was too long.
    stuck: bool = False

    async def stop(self) -> None:
        """Give up the run of the task."""
        self.stopped = True
        await cast("Future[WorkerAnswer]", self.future).cancel()  # type: ignore[no-untyped-call]


class Cluster:
    """The workers of one scheduler that have the same version of buildfarm as this process."""

    def __init__(
        self,
        address: str,
        *,
        patience: float,
        on_stage: Callable[[str, str, str], None],
        function: Callable[..., WorkerAnswer] = run_task,
    ) -> None:
        """Connect to nothing yet.

        `patience` is how many seconds to wait for a scheduler that ended, and for a worker that can run a task.
        `on_stage` gets the title of a task, the name of a machine and the stage; an empty stage is the end of the task.
        `function` runs a task on a worker.
        """
        self.address = address
        self._patience = patience
        self._on_stage = on_stage
        self._function = function
        self._security = security_for(address)
        self._parts: dict[str, Future[bytes]] = {}  # of recipes, by name; all tasks share them
        self._foreign: list[str] = []  # what is to say about workers of other versions
        self._connected = asyncio.Lock()  # held while the client is closed
        self._moves = asyncio.Semaphore(_MOVES)
        self._workers: dict[str, dict[str, Any]] = {}
        self._seen = 0  # the largest number of workers so far
        self._pending: dict[str, _Pending] = {}  # by the key of the task

    async def __aenter__(self) -> Cluster:
        quiet_dask()
        await self._connect()
        if self._client.dashboard_link:
            print_line(f"Dask's dashboard: {self._client.dashboard_link}")
        await self.refresh()
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give up every task that still runs: the workers end their processes."""
        self._looking.cancel()
        await self._close()

    async def _connect(self) -> None:
        self._client = await connect(self.address, self._security)
        self._client.subscribe_topic(protocol.TOPIC, self._event)  # type: ignore[no-untyped-call]

    async def _close(self) -> None:
        with suppress(Exception):
            await asyncio.wait_for(self._client.close(), CONNECT_SECONDS)  # type: ignore[no-untyped-call]

    async def _event(self, event: tuple[float, Any]) -> None:
        """Take a report of a worker.

        Dask blames the end of a worker on every task that was assigned to it, also on those that only waited there. So
        the runs that started are counted here. A task that ended two workers runs again with no other beside it: the
        third worker that ends is its fault.
        """
        about = event[1]
        pending = self._pending.get(about["key"])
        if pending is None:  # a task of another client
            return
        if about["stage"] == "end":
            pending.runs.discard(about["run"])
        elif about["stage"] != "start":
            self._on_stage(about["title"], about["machine"], about["stage"])
        elif (deaths := len(pending.runs)) < DEATHS - 1 or (deaths < DEATHS and pending.alone) or not pending.future:
            pending.runs.add(about["run"])
        else:
            await pending.stop()

    async def refresh(self) -> None:
        """Ask the scheduler for its workers; warn of each that has another version, once."""
        identity = await cast("Any", self._client.scheduler).identity(n_workers=-1)
        found: dict[str, dict[str, Any]] = identity["workers"]
        self._workers = {a: worker for a, worker in found.items() if version_resource() in worker["resources"]}
        foreign = sorted({other_version(found[address]) for address in found.keys() - self._workers.keys()})
        for words in set(foreign) - set(self._foreign):
            print_warning(f"{words}, and this is buildfarm {protocol.version_text()}; it gets no task")
        self._foreign = foreign
        self._seen = max(self._seen, len(self._workers))

    async def _call(self, workers: list[str], method: str, *arguments: object) -> dict[str, Any]:
        """Call a method of `Service` on some workers now; the answers, or exceptions, by address."""
        async with self._connected:
            client = self._client
        found: dict[str, Any] = await client.run(serve, method, *arguments, workers=workers, on_error="return")
        return found

    async def _call_one(self, worker: str, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """The same on one worker; raises OSError when it is gone, and what the method raises."""
        answer = (await self._call([worker], method, *arguments)).get(worker, OSError("the worker is gone"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def finished(self, digests: Sequence[str]) -> dict[str, WorkerAnswer]:
        """Those of these builds whose wheel a worker has, by the digest of the task."""
        workers = list(self._workers)
        answers = await self._call(workers, "finished", list(digests)) if digests and workers else {}
        return {
            digest: WorkerAnswer(worker, wheel=wheel, reused=True)
            for worker, wheels in answers.items()
            if isinstance(wheels, dict)  # else an error of the worker
            for digest, wheel in wheels.items()
        }

    async def fetch(self, worker: str, wheel: SentWheel, target: Path) -> None:
        """Copy a wheel from a worker; raises OSError when the worker lacks it now, or sends other bytes."""
        digest, size = hashlib.sha256(), 0
        async with self._moves:
            with target.open("wb") as stream:
                while size < wheel.size and (data := await self._call_one(worker, "read", wheel, size)):
                    await asyncio.to_thread(stream.write, data)
                    digest.update(data)
                    size += len(data)
        if digest.hexdigest() != wheel.sha256:
            raise OSError(wheel.filename)

    async def send(self, worker: str, wheel: SentWheel, path: Path) -> None:
        """Copy a wheel of the client to one worker; raises OSError when the worker is gone."""
        async with self._moves:
            with path.open("rb") as stream:
                for offset in range(0, wheel.size, CHUNK):
                    data = await asyncio.to_thread(stream.read, CHUNK)
                    await self._call_one(worker, "write", wheel, offset, data)

    async def compute(self, task: Task, parts: Mapping[str, bytes], *, only: str = "") -> WorkerAnswer:
        """Let a worker run a task, the worker `only` if it is still there.

        The answer says why if no worker can. A worker that cannot run the task, for example because its disk is full,
        is left out, and the next one tries. Raises UnreachableError if the scheduler ended and does not come back.
        """
        if task.gpu and not self._able(task):
            return WorkerAnswer(error=missing(task, self._workers, self._foreign))
        pending = self._pending[task.key] = _Pending(task, parts)
        tried: dict[str, WorkerAnswer] = {}
        try:
            while True:
                pending.workers = [only] if only in self._workers else None
                if tried:
                    pending.workers = [address for address in self._able(task) if address not in tried]
                answer = await self._submitted(pending)
                if answer is None:
                    continue
                if not answer.machine_fault:
                    return answer
                tried[answer.worker] = answer
                if len(tried) == TRIES or not set(self._able(task)) - tried.keys():
                    return nobody(task, list(tried.values()))
                print_warning(f"{answer.machine}: {task.title}: {answer.error}; another worker gets it")
        finally:
            del self._pending[task.key]
            self._on_stage(task.title, "", "")

    async def _submitted(self, pending: _Pending) -> WorkerAnswer | None:
        """Submit a task once, and wait for its answer; None: submit it again."""
        task, workers = pending.task, pending.workers
        pending.alone, pending.stopped = len(pending.runs) == DEATHS - 1, False
        key = task.key if workers is None else f"{task.key}-{digest_of(sorted(workers))[:8]}"
        resources = {name: amount for name, (amount, _) in task.needs.items()}
        async with self._connected:
            future = pending.future = self._client.submit(
                self._function,
                task,
                *(self._part(name, data) for name, data in pending.parts.items()),
                key=f"{key}-alone" if pending.alone else key,  # a worker may still end the run that was stopped
                resources={**resources, version_resource(): protocol.MANY if pending.alone else 1},
                priority=task.priority,
                workers=workers,
            )
        try:
            return cast("WorkerAnswer", await future)
        except KilledWorker:
            pass
        except FutureCancelledError:
            if pending.stuck:
                return WorkerAnswer(error=missing(task, self._workers, self._foreign))
            if not pending.stopped:
                await self._restored()
                return (await self.finished([task.digest])).get(task.digest) if isinstance(task, BuildTask) else None
        finally:
            future.release()  # type: ignore[no-untyped-call]
        if len(pending.runs) >= DEATHS:
            error = f"{DEATHS} workers ended while they ran it, the last of them without another task"
            hint = "see whether it ends processes that are not its own, or uses up the memory of the machine"
            return WorkerAnswer(error=BuildfarmError(error, Code.KILLED, hints=[hint]))
        await asyncio.sleep(0.1)  # Dask forgets the failed future in a turn of the loop
        return None

    def _part(self, name: str, data: bytes) -> Future[bytes]:
        found = self._parts.get(name)
        if found is None or found.status in ("cancelled", "lost", "error"):
            found = self._client.submit(keep, data, key=name, resources={version_resource(): 1}, priority=1e9)
            self._parts[name] = found
        return found

    def _able(self, task: Task) -> list[str]:
        """The workers that offered what a task needs at the last look."""
        needs = task.needs
        return [address for address, worker in self._workers.items() if not _lacks(worker, needs)]

    async def _look(self) -> None:
        """Look at the workers again and again; give up the tasks that no worker could run for too long."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            async with self._connected:
                with suppress(OSError):
                    await self.refresh()
            only_foreign = self._foreign and not self._workers
            patience = min(self._patience, SECONDS_FOR_VERSION) if only_foreign else self._patience
            able: dict[tuple[object, ...], bool] = {}
            for pending in [each for each in self._pending.values() if each.future]:
                needs = tuple(pending.task.needs.items())
                if needs not in able:
                    able[needs] = bool(self._able(pending.task))
                pending.since = 0.0 if able[needs] else pending.since or time.monotonic()
                pending.stuck = pending.since > 0 and time.monotonic() - pending.since >= patience
                gone = pending.workers is not None and self._workers.keys().isdisjoint(pending.workers)
                if pending.stuck or gone:
                    await pending.stop()

    async def _restored(self) -> None:
        """Wait until the scheduler answers again, and its workers are back. Raises UnreachableError."""
        async with self._connected:
            with suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(cast("Any", self._client.scheduler).identity(n_workers=0), LOOK_SECONDS)
                return
            print_warning(f"lost the scheduler at {self.address}; waiting until it comes back")
            await self._close()
            self._parts = {}
            for pending in self._pending.values():
                pending.runs.clear()  # the workers stopped them
            deadline, connected = time.monotonic() + self._patience, False
            while not connected:
                try:
                    await self._connect()
                    connected = True
                except UnreachableError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(1)
            print_line(f"connected to {self.address} again")
            back = time.monotonic() + min(self._patience, SECONDS_TO_RETURN)
            while len(self._workers) < self._seen and time.monotonic() < back:
                await asyncio.sleep(0.5)
                await self.refresh()


def _lacks(worker: Mapping[str, Any], needs: protocol.Needs) -> list[str]:
    """What is to say of a worker that offers too little for a task."""
    offered = worker["resources"]
    return [reason for name, (amount, reason) in needs.items() if offered.get(name, 0) < amount]


def other_version(worker: Mapping[str, Any]) -> str:
    """What is to say about a worker of another version, or without buildfarm."""
    if facts := worker.get(protocol.PLUGIN):
        return f"the worker {facts['name']} has buildfarm {facts['version']}"
    return f"the worker {worker['name']} has no buildfarm"


def missing(task: Task, workers: Mapping[str, Mapping[str, Any]], foreign: Sequence[str]) -> BuildfarmError:
    """The error that says what each worker lacks for a task.

    `workers` are those of the same version, and `foreign` is what is to say about the others.
    """
    lacks: dict[str, list[str]] = {}
    kind = protocol.BUILDS if isinstance(task, BuildTask) else protocol.PROOFS
    for worker in workers.values():
        if kind not in worker["resources"]:
            continue  # the other Dask worker of the same machine
        reason = " and ".join(_lacks(worker, task.needs))
        lacks.setdefault(reason, []).append(worker[protocol.PLUGIN]["name"])
    sentences = []
    for reason, names in lacks.items():
        more = [f"{len(names) - _NAMES} more"] if len(names) > _NAMES else []
        have = "has" if len(names) == 1 else "have"
        sentences.append(f"{and_list([*sorted(names)[:_NAMES], *more])} {have} {reason}")
    if lacks:
        sentence = f"no worker can run {task.what}: {'; '.join(sentences)}"
        hint = "start a worker that can with `buildfarm worker`; `--worker-timeout` says how long to wait for one"
    else:
        sentence = f"no worker with buildfarm {protocol.version_text()} is connected to the scheduler"
        sentence = ": ".join(filter(None, (sentence, "; ".join(foreign))))
        hint = "start a worker with `buildfarm worker`, with the same version of buildfarm as here"
    return MissingToolError(sentence, Code.NO_CELL_HERE, hints=[hint])


def nobody(task: Task, tried: Sequence[WorkerAnswer]) -> WorkerAnswer:
    """The last answer of workers that failed, with the reason of each; hints are about the machine of the last."""
    error = cast("BuildfarmError", tried[-1].error)
    each = "; ".join(f"{answer.machine}: {answer.error}" for answer in tried)
    error.sentence, error.where = f"no worker could run {task.what}: {each}", ""
    error.hints = tuple(f"on {tried[-1].machine}: {hint}" for hint in error.hints)
    return tried[-1]
