"""The workers of a Dask scheduler: which can run a task, and what happens when one of them cannot."""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from distributed import Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from builder.commands.distributed import protocol
from builder.commands.distributed.connection import CONNECT_SECONDS, connect, quiet_dask
from builder.commands.distributed.protocol import BuildTask, CheckTask, Task, WorkerAnswer, version_resource
from builder.commands.distributed.worker.service import CHUNK, keep, run_task, serve
from builder.errors import BuildfarmError, Code, MissingToolError
from builder.formats import digest_of
from builder.gate.amounts import grouped, join_names
from builder.log import print_line, print_warning
from builder.process import raise_if_interrupted
from builder.store import StoredBuild

#: How many workers try a task that they cannot run, for example because their disk is full.
TRIES = 3
#: Seconds between two looks at the workers.
LOOK_SECONDS = 2.0
#: How many wheels move at the same time: in parts, which the scheduler passes on.
_MOVES = 4


class Cluster:
    """The workers of one scheduler that have the same version of buildfarm as this process. Threads may share it."""

    def __init__(
        self,
        address: str,
        *,
        patience: float,
        on_stage: Callable[[str, str, str], None],
        function: Callable[..., WorkerAnswer] = run_task,
    ) -> None:
        """Connect to the scheduler; raises UnreachableError.

        `patience` is how many seconds to wait for a worker that can run a task.
        `on_stage` gets the title of a task, the name of a machine and the stage; an empty stage is the end of the task.
        `function` runs a task on a worker.
        """
        quiet_dask()
        self.address = address
        self._patience = patience
        self._on_stage = on_stage
        self._function = function
        self._parts: dict[str, Future[bytes]] = {}  # of recipes, by name; all tasks share them
        self._running: set[str] = set()  # keys of tasks
        self._moves = threading.Semaphore(_MOVES)
        self._looking = threading.Lock()
        self._looked = 0.0
        self._workers: dict[str, dict[str, Any]] = {}
        self._foreign: list[str] = []  # what is to say about workers of other versions
        self._client = connect(address)
        self._client.subscribe_topic(protocol.TOPIC, self._event)  # type: ignore[no-untyped-call]
        if self._client.dashboard_link:
            print_line(f"Dask's dashboard: {self._client.dashboard_link}")
        self._look()

    def close(self) -> None:
        """Give up every task that still runs: the workers end their processes."""
        with suppress(Exception):
            self._client.close(CONNECT_SECONDS)  # type: ignore[no-untyped-call]

    def _event(self, event: tuple[float, Any]) -> None:
        """Take a report of a worker, which may be about the task of another client."""
        about = event[1]
        if about["key"] in self._running:
            self._on_stage(about["title"], about["machine"], about["stage"])

    def _look(self) -> None:
        """Ask the scheduler for its workers, unless that was just now; warn of each that has another version, once."""
        with self._looking:
            if time.monotonic() - self._looked < LOOK_SECONDS:
                return
            with suppress(OSError, TimeoutError):
                found: dict[str, dict[str, Any]] = self._client.scheduler_info(n_workers=-1)["workers"]
                self._workers = {a: worker for a, worker in found.items() if version_resource() in worker["resources"]}
                foreign = sorted({other_version(found[address]) for address in found.keys() - self._workers.keys()})
                for words in set(foreign) - set(self._foreign):
                    print_warning(f"{words}, and this is buildfarm {protocol.version_text()}; it gets no task")
                self._foreign = foreign
            self._looked = time.monotonic()

    def _call(self, worker: str, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Call a method of `Service` on a worker now; raises OSError when it is gone, and what the method raises."""
        found: dict[str, Any] = self._client.run(serve, method, *arguments, workers=[worker], on_error="return")
        answer = found.get(worker, OSError("the worker is gone"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fetch(self, worker: str, wheel: StoredBuild, target: Path) -> None:
        """Copy a wheel from a worker; raises OSError when the worker lacks it now, or sends other bytes."""
        digest, size = hashlib.sha256(), 0
        with self._moves, target.open("wb") as stream:
            while data := self._call(worker, "read", wheel, size):
                raise_if_interrupted()
                stream.write(data)
                digest.update(data)
                size += len(data)
        if digest.hexdigest() != wheel.sha256:
            raise OSError(target.name)

    def send(self, worker: str, wheel: StoredBuild) -> None:
        """Copy a wheel of the client to one worker; raises OSError when the worker is gone."""
        with self._moves, wheel.wheel.open("rb") as stream:
            data = b"begin"
            while data:  # the last part, an empty one, is the end
                raise_if_interrupted()
                offset, data = stream.tell(), stream.read(CHUNK)
                self._call(worker, "write", wheel, offset, data)

    def compute(self, task: Task, parts: Mapping[str, bytes], *, only: str = "") -> WorkerAnswer:
        """Let a worker run a task, the worker `only` if it is still there.

        The answer says why if no worker can. A worker that cannot run the task, for example because its disk is full,
        is left out, and the next one tries. Raises MissingToolError if the scheduler ended.
        """
        tried: dict[str, WorkerAnswer] = {}
        self._running.add(task.key)
        try:
            while True:
                workers = [only] if only in self._workers and not tried else self._places(task, tried)
                answer = self._submitted(task, parts, workers)
                if answer is None:
                    continue
                if not answer.machine_fault:
                    return answer
                tried[answer.worker] = answer
                if len(tried) == TRIES or not set(self._able_to(task)) - tried.keys():
                    return nobody(task, list(tried.values()))
                print_warning(f"{answer.machine}: {task.title}: {answer.error}; another worker gets it")
        finally:
            self._running.discard(task.key)
            self._on_stage(task.title, "", "")

    def _places(self, task: Task, tried: Collection[str]) -> list[str] | None:
        """The workers among which Dask chooses, None for all: for checks, those with a GPU, if there are any."""
        able = [address for address in self._able_to(task) if address not in tried]
        if isinstance(task, CheckTask) and (with_gpu := [address for address in able if self._has_gpu(address)]):
            return with_gpu
        return able if tried else None

    def has_gpu(self) -> bool:
        """Whether a worker had a GPU at the last look."""
        return any(map(self._has_gpu, self._workers))

    def _has_gpu(self, address: str) -> bool:
        worker = self._workers.get(address)  # another thread may just have looked again
        return worker is not None and protocol.GPU in worker["resources"]

    def _submitted(self, task: Task, parts: Mapping[str, bytes], workers: list[str] | None) -> WorkerAnswer | None:
        """Submit a task once, and wait for its answer; None: submit it again."""
        self._check_connection()
        resources = {name: amount for name, (amount, _) in task.needs.items()}
        future = self._client.submit(
            self._function,
            task,
            *(self._part(name, data) for name, data in parts.items()),
            key=task.key if workers is None else f"{task.key}-{digest_of(sorted(workers))[:8]}",
            resources={**resources, version_resource(): 1},
            priority=task.priority,
            workers=workers,
        )
        try:
            return self._answer(task, future, workers)
        except KilledWorker as error:
            sentence = f"{error.allowed_failures + 1} workers ended while they had this task"
            hints = [
                "see whether it, or another task that they had, ends processes or uses up the memory of the machine",
                "run the command again: it builds what is missing",
            ]
            return WorkerAnswer(error=BuildfarmError(sentence, Code.KILLED, hints=hints))
        except FutureCancelledError:  # the scheduler ended, or this run does
            raise_if_interrupted()
            return None
        finally:
            future.release()  # type: ignore[no-untyped-call]

    def _answer(self, task: Task, future: Future[WorkerAnswer], workers: list[str] | None) -> WorkerAnswer | None:
        """Wait for the answer; None if none of `workers` is there any more. After `patience`, why no worker can."""
        unable_since, ended = 0.0, threading.Event()
        future.add_done_callback(lambda _: ended.set())  # type: ignore[no-untyped-call]
        while not ended.wait(LOOK_SECONDS):
            self._check_connection()
            self._look()
            unable_since = 0.0 if self._able_to(task) else unable_since or time.monotonic()
            if unable_since and time.monotonic() - unable_since >= self._patience:
                return WorkerAnswer(error=missing(task, self._workers, self._foreign))
            if workers is not None and self._workers.keys().isdisjoint(workers):
                return None
        return future.result()

    def _check_connection(self) -> None:
        """Raise MissingToolError if the scheduler ended."""
        raise_if_interrupted()
        if self._client.status != "running":
            hint = "start it, its workers, and then the same command again: it builds what is missing"
            raise MissingToolError("the scheduler ended", Code.NETWORK_UNREACHABLE, where=self.address, hints=[hint])

    def _part(self, name: str, data: bytes) -> Future[bytes]:
        found = self._parts.get(name)
        if found is None or found.status in ("cancelled", "lost", "error"):
            found = self._client.submit(keep, data, key=name, resources={version_resource(): 1}, priority=1e9)
            self._parts[name] = found
        return found

    def _able_to(self, task: Task) -> list[str]:
        """The workers that offered what a task needs at the last look."""
        return [address for address, worker in self._workers.items() if not _lacks(worker, task.needs)]


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
    kind = protocol.BUILDS if isinstance(task, BuildTask) else protocol.PROOFS
    of_kind = (one for one in workers.values() if kind in one["resources"])  # a machine has a Dask worker of each kind
    lacks = grouped((" and ".join(_lacks(one, task.needs)), one[protocol.PLUGIN]["name"]) for one in of_kind)
    sentences = []
    for reason, names in lacks.items():
        sentences.append(f"{join_names(sorted(names))} {'has' if len(names) == 1 else 'have'} {reason}")
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
