"""buildfarm's plugin of a Dask worker: runs tasks in processes of their own, and hands out files of its store."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from distributed import Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.utils import sync

from builder.commands.distributed.protocol import (
    PLUGIN,
    TOPIC,
    Answer,
    BuildTask,
    Failure,
    Task,
    WheelFile,
    WheelRef,
)
from builder.commands.distributed.worker.child import Work, killed_by
from builder.commands.distributed.worker.facts import WorkerFacts
from builder.hashing import sha256_of
from builder.resources import measure_resources
from builder.storage.runs import FinishedTasks
from builder.store import RUN, Store
from builder.wheels.build_dir import clear_abandoned

if TYPE_CHECKING:
    from distributed.worker_state_machine import TaskStateState

# The processes in which a worker runs its tasks: each ends when nobody waits for its task any more.

#: Seconds that a task's process has to end its programs after SIGTERM.
SECONDS_TO_END = 15.0
#: The program, without the number of its socket.
PROGRAM = (sys.executable, "-m", "builder.commands.distributed.worker.child")


@dataclass
class _Running:
    """A process, and whether it was told to end."""

    process: subprocess.Popen[bytes]
    ended: bool = False

    def end(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not help."""
        self.ended = True
        self.process.terminate()
        timer = threading.Timer(SECONDS_TO_END, self.process.kill)
        timer.daemon = True
        timer.start()


class TaskProcesses:
    """The running processes by the Dask key of their task. Dask's event loop and the threads of tasks share this."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._unwanted: set[str] = set()

    def want(self, key: str) -> None:
        """Note that somebody waits for this task, for the first time or again."""
        with self._lock:
            self._unwanted.discard(key)

    def end(self, key: str) -> None:
        """Note that nobody waits for this task, and end its process: now, or as soon as it is started."""
        with self._lock:
            self._unwanted.add(key)
            if running := self._running.get(key):
                running.end()

    def end_all(self) -> None:
        """End every process."""
        for key in list(self._running):
            self.end(key)

    def run(
        self, key: str, work: Work, on_stage: Callable[[str], None], on_answer: Callable[[Answer], None]
    ) -> tuple[Answer | None, int]:
        """Run a task; return its answer, or None if the process ended without one, and the exit status.

        `on_answer` gets the answer before the process ends.

        A client may ask for a task again while the process that was told to end still runs. Dask takes the answer of
        the first run then, so the task runs again here.
        """
        while True:
            answer, status, ended = self._run_once(key, work, on_stage, on_answer)
            with self._lock:
                if answer is None and ended and key not in self._unwanted:
                    continue
                self._unwanted.discard(key)
            return answer, status

    def _run_once(
        self, key: str, work: Work, on_stage: Callable[[str], None], on_answer: Callable[[Answer], None]
    ) -> tuple[Answer | None, int, bool]:
        """The answer and the exit status of one process, and whether this worker ended the process."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            argv = [*self._program, str(theirs.fileno())]
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
            )
            self._running[key] = running = _Running(process)
            if key in self._unwanted:
                running.end()
        answer: Answer | None = None
        try:
            with Connection(ours.detach()) as channel, suppress(EOFError, OSError):
                channel.send(work)
                while not isinstance(message := channel.recv(), Answer):
                    on_stage(message[1])
                answer = message
                on_answer(answer)
            status = process.wait()
        finally:
            with self._lock:
                del self._running[key]
        return answer, status, running.ended


#: Bytes of a file in one message.
CHUNK = 4 << 20
#: Seconds after the end of a task in which the client and other workers copy its log and its wheel.
SECONDS_TO_COPY = 3600.0


class Service(WorkerPlugin):
    """What buildfarm adds to one Dask worker."""

    name = PLUGIN

    def __init__(self, store: Path, facts: WorkerFacts) -> None:
        """`store` is the folder of the worker's own store."""
        self._root = store
        self._facts = facts

    def setup(self, worker: Worker) -> None:
        """Announce the facts, and answer requests of other workers for files."""
        logging.getLogger("distributed.diskutils").setLevel(logging.CRITICAL)  # the nanny deletes the same folder
        self._worker = worker
        self._store = Store(self._root)
        self._finished = FinishedTasks(self._root)
        clear_abandoned(self._store)
        self._processes = TaskProcesses()
        loop = worker.loop
        self._holds = Holds(self._store, lambda delay, function: loop.add_callback(loop.call_later, delay, function))
        worker.startup_information[PLUGIN] = lambda _: self._facts.to_json()
        worker.handlers["buildfarm_read"] = self.read

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002
        """End every task: the worker ends, or lost its scheduler."""
        self._processes.end_all()

    def transition(self, key: Any, start: TaskStateState, finish: TaskStateState, **_: object) -> None:  # noqa: ANN401
        """End the process of a task that nobody waits for any more."""
        if start in ("executing", "long-running") and finish in ("cancelled", "released", "forgotten"):
            self._processes.end(str(key))
        elif finish in ("executing", "long-running") or (start == "cancelled" and finish == "waiting"):
            self._processes.want(str(key))  # Dask calls it "waiting" when a task that was given up is wanted again

    def run(self, task: Task, parts: Sequence[bytes]) -> Answer:
        """Run a task in a process of its own, and report its stages as events of Dask."""
        run = {"run": uuid4().hex, "worker": self._worker.address, "machine": self._facts.name}
        about = run | {"key": task.key, "title": task.title}
        wheel = None if isinstance(task, BuildTask) else task.wheel
        self._worker.log_event(TOPIC, about | {"stage": "start"})
        try:
            with self._holds.held(RUN, *([f"builds/{wheel.digest}", f"received/{wheel.sha256}"] if wheel else [])):
                return self._run(task, parts, about)
        except OSError as error:  # a full disk, for example
            return Answer(self._worker.address, self._facts.name, Failure.of_os_error(error))
        finally:
            self._worker.log_event(TOPIC, about | {"stage": "end"})

    def _run(self, task: Task, parts: Sequence[bytes], about: dict[str, str]) -> Answer:
        file: Path | None = None
        if not isinstance(task, BuildTask):
            self._worker.log_event(TOPIC, about | {"stage": "fetch the wheel"})
            file = self._obtain(task.wheel)
            if file is None:
                return Answer(self._worker.address, self._facts.name, no_wheel=True)
        work = Work(task, parts, self._root, self._facts.jobs, file)

        def mark(answer: Answer) -> None:
            if answer.wheel is not None:  # the process, which has marked it so far, ends now
                with self._holds.held(f"builds/{answer.wheel.digest}"):
                    pass

        def report(stage: str) -> None:
            self._worker.log_event(TOPIC, about | {"stage": stage})

        key = str(self._worker.get_current_task())  # differs from the task's key in a second attempt
        answer, status = self._processes.run(key, work, report, mark)
        if answer is None:
            clear_abandoned(self._store)
            answer = Answer(failure=killed_by(status, measure_resources().memory))
        if isinstance(task, BuildTask) and answer.wheel is not None:
            wheel = replace(answer.wheel, holders=(self._worker.address,))
            self._finished.remember(task.digest, wheel.digest)
            answer = replace(answer, wheel=wheel)
        return replace(answer, worker=self._worker.address, machine=self._facts.name)

    def finished(self, digests: Sequence[str]) -> dict[str, WheelRef]:
        """Those of these tasks whose wheel is in this worker's store."""
        found: dict[str, WheelRef] = {}
        for digest in digests:
            name = self._finished.build_of(digest)
            if name is None:
                continue
            with self._holds.held(f"builds/{name}"):
                stored = self._store.find(name)
            with suppress(OSError):
                if stored:
                    found[digest] = WheelRef.of(stored, (self._worker.address,))
        return found

    def read(self, kind: str = "", name: str = "", offset: int = 0) -> bytes:
        """Up to CHUNK bytes of a file of the store: `wheel` by its sha256 and file name, or `log` by its name."""
        with self._path(kind, name).open("rb") as stream:
            stream.seek(offset)
            return stream.read(CHUNK)

    def write(self, name: str, offset: int, data: bytes, sha256: str = "") -> None:
        """Write a part of a wheel that a client sends; the last part has the sha256 of the file."""
        path = self._path("wheel", name)
        partial = path.with_name(f".{path.name}.partial")
        with self._holds.held(f"received/{path.parent.name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("r+b" if offset else "wb") as stream:
            stream.seek(offset)
            stream.write(data)
        if sha256 and sha256_of(partial) == sha256:
            partial.rename(path)

    def _path(self, kind: str, name: str) -> Path:
        """The path of a file; raises ValueError for a name that leads elsewhere."""
        parts = name.split("/")
        if kind not in ("wheel", "log") or any(part in ("", ".", "..") for part in parts):
            raise ValueError(name)
        if kind == "log":
            return self._root / "logs" / parts[-1]
        digest, sha256, filename = parts
        built = self._root / "builds" / digest / filename
        return built if built.is_file() else self._root / "received" / sha256 / filename

    def _obtain(self, wheel: WheelFile) -> Path | None:
        """The wheel's file, from this store or from another worker; None if no worker has it."""
        path = self._path("wheel", place_of(wheel))
        if path.is_file() and sha256_of(path) == wheel.sha256:
            return path
        for holder in wheel.holders:
            if holder == self._worker.address:
                continue
            with suppress(OSError):
                sync(self._worker.loop, self._fetch, holder, wheel, path)
                return path
        return None

    async def _fetch(self, holder: str, wheel: WheelFile, path: Path) -> None:
        """Copy a wheel from another worker; raises OSError when the worker is gone, or sends other bytes."""

        async def read(offset: int) -> object:
            rpc = self._worker.rpc(holder)
            return await rpc.buildfarm_read(kind="wheel", name=place_of(wheel), offset=offset)

        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{self._worker.id}")
        try:
            await write_parts(wheel, partial, read)
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)


async def write_parts(wheel: WheelFile, target: Path, read: Callable[[int], Awaitable[object]]) -> None:
    """Write a wheel whose bytes `read` gives in parts, by their offset; raises OSError if it gives other bytes."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as stream:
        while size < wheel.size:
            data = await read(size)
            if not isinstance(data, bytes) or not data:
                raise OSError(wheel.filename)
            await asyncio.to_thread(stream.write, data)
            digest.update(data)
            size += len(data)
    if digest.hexdigest() != wheel.sha256:
        raise OSError(wheel.filename)


def place_of(wheel: WheelFile) -> str:
    """The name of a wheel in `Service.read`."""
    return f"{wheel.digest}/{wheel.sha256}/{wheel.filename}"


def service_of(worker: Worker | None) -> Service:
    """The plugin of a worker; Dask gives the worker to the functions that it calls on it."""
    return cast("Service", cast("Worker", worker).plugins[PLUGIN])


def run_task(task: Task, *parts: bytes) -> Answer:
    """What Dask calls on a worker: run the task whose recipe is in these parts."""
    return service_of(get_worker()).run(task, parts)


def keep(part: bytes) -> bytes:
    """What Dask calls for a part of a recipe: the result, which Dask gives to the tasks that need it, is the part."""
    return part


# What a client calls on one worker at once, whatever tasks run there. Dask fills in `dask_worker`.


def find_finished(digests: Sequence[str], dask_worker: Worker | None = None) -> dict[str, WheelRef]:
    """`Service.finished`."""
    return service_of(dask_worker).finished(digests)


def read_file(kind: str, name: str, offset: int, dask_worker: Worker | None = None) -> bytes:
    """`Service.read`."""
    return service_of(dask_worker).read(kind, name, offset)


def write_file(name: str, offset: int, data: bytes, sha256: str, dask_worker: Worker | None = None) -> None:
    """`Service.write`."""
    service_of(dask_worker).write(name, offset, data, sha256)


class Holds:
    """The marks of one worker on paths of its store, counted."""

    def __init__(self, store: Store, later: Callable[[float, Callable[[], None]], object]) -> None:
        """`later` calls a function after some seconds."""
        self._store = store
        self._later = later
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def held(self, *targets: str) -> Iterator[None]:
        """Mark paths of the store, or RUN, as used, until SECONDS_TO_COPY after the body ended.

        Waits while `store prune` deletes one of them.
        """
        for target in targets:
            with self._lock:
                self._counts[target] += 1
                self._store.use(target)
        try:
            yield
        finally:
            self._later(SECONDS_TO_COPY, lambda: self._drop(targets))

    def _drop(self, targets: tuple[str, ...]) -> None:
        for target in targets:
            with self._lock:
                self._counts[target] -= 1
                if not self._counts[target]:
                    del self._counts[target]
                    self._store.release(target)
