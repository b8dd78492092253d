"""buildfarm's plugin of a Dask worker: runs tasks in processes of their own, and hands out files of its store."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from distributed import Reschedule, Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from builder.commands.distributed.protocol import PLUGIN, TOPIC, CheckTask, Task, WorkerAnswer, refused, version_text
from builder.commands.distributed.worker.child import Work
from builder.errors import BuildfarmError, Code
from builder.formats import sha256_of
from builder.gate.amounts import size_text
from builder.resources import measure_resources
from builder.store import Store, StoredBuild
from builder.wheels.build_dir import clear_abandoned

if TYPE_CHECKING:
    from distributed.worker_state_machine import TaskStateState

#: Seconds that a task's process has to end its programs after SIGTERM.
SECONDS_TO_END = 15.0
#: The program of a task, without the number of its socket.
PROGRAM = (sys.executable, "-m", "builder.commands.distributed.worker.child")
#: Bytes of a file in one message.
CHUNK = 4 << 20


class Service(WorkerPlugin):
    """What buildfarm adds to one Dask worker."""

    name = PLUGIN

    def __init__(self, store: Path, machine: str, jobs: int) -> None:
        """`store` is the folder of the worker's own store; `jobs` is how many compilers a build may start."""
        self._root = store
        self._machine = machine
        self._jobs = jobs

    def setup(self, worker: Worker) -> None:
        """Announce the version."""
        logging.getLogger("distributed.diskutils").setLevel(logging.CRITICAL)  # the nanny deletes the same folder
        self._worker = worker
        self._store = Store(self._root)
        clear_abandoned(self._store)
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}  # by the Dask key of the task
        self._ended: set[int] = set()  # ids of processes that this worker ended
        # What Dask sends to clients, beside the resources.
        worker.startup_information[PLUGIN] = lambda _: {"name": self._machine, "version": version_text()}

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002
        """End every task: the worker ends, or lost its scheduler."""
        for key in list(self._running):
            self._end(key)

    def transition(self, key: Any, start: TaskStateState, finish: TaskStateState, **_: object) -> None:  # noqa: ANN401, ARG002
        """End the process of a task that nobody waits for any more."""
        if finish in ("cancelled", "released", "forgotten"):
            self._end(str(key))

    def _end(self, key: str) -> None:
        """Send SIGTERM to the process of a task, and SIGKILL if that does not help."""
        with self._lock:
            if process := self._running.get(key):
                self._ended.add(process.pid)
                process.terminate()
                timer = threading.Timer(SECONDS_TO_END, process.kill)
                timer.daemon = True
                timer.start()

    def run(self, task: Task, parts: Sequence[bytes]) -> WorkerAnswer:
        """Run a task in a process of its own, and report its stages as events of Dask."""
        about = {"machine": self._machine, "key": task.key, "title": task.title}

        def report(stage: str) -> None:
            self._worker.log_event(TOPIC, about | {"stage": stage})

        try:
            answer = self._run(task, parts, report)
        except OSError as error:  # a full disk, for example
            answer = refused(error)
        return replace(answer, worker=self._worker.address, machine=self._machine)

    def _run(self, task: Task, parts: Sequence[bytes], report: Callable[[str], None]) -> WorkerAnswer:
        sent = task.wheel if isinstance(task, CheckTask) else None
        if sent:
            self._store.use(f"builds/{sent.digest}")
            self._store.use(f"received/{sent.sha256}")
        file = self._path_of(sent) if sent else None
        if sent and file and not (file.is_file() and sha256_of(file) == sent.sha256):
            return WorkerAnswer(no_wheel=True)
        return self._in_process(Work(task, parts, self._root, self._jobs, file), report)

    def _in_process(self, work: Work, report: Callable[[str], None]) -> WorkerAnswer:
        """The answer of a process, or why it ended without one.

        Raises Reschedule if this worker ended it. Dask then forgets the task, or runs it again for a client that wants
        it meanwhile.
        """
        key = str(self._worker.get_current_task())  # differs from the task's key in a second attempt
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            number = theirs.fileno()
            argv = [*PROGRAM, str(number)]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(number,), start_new_session=True)
            self._running[key] = process
        state = self._worker.state.tasks.get(key)
        if state is None or state.state == "cancelled":  # before the process was started
            self._end(key)
        answer: WorkerAnswer | None = None
        try:
            with Connection(ours.detach()) as channel, suppress(EOFError, OSError):
                channel.send(work)
                while not isinstance(message := channel.recv(), WorkerAnswer):
                    report(message)
                answer = message
            status = process.wait()
        finally:
            with self._lock:
                del self._running[key]
        if answer is None and process.pid in self._ended:
            self._ended.discard(process.pid)
            raise Reschedule
        if answer is None:
            clear_abandoned(self._store)
            sentence = f"the process of this task ended with status {status}"
            if status == -signal.SIGKILL:
                free = size_text(measure_resources().memory)
                sentence = f"the process of this task was killed, probably for lack of memory ({free} were free)"
            return WorkerAnswer(error=BuildfarmError(sentence, Code.KILLED), machine_fault=True)
        return answer

    def read(self, wheel: StoredBuild, offset: int) -> bytes:
        """Up to CHUNK bytes of a wheel."""
        with self._path_of(wheel).open("rb") as stream:
            stream.seek(offset)
            return stream.read(CHUNK)

    def write(self, wheel: StoredBuild, offset: int, data: bytes) -> None:
        """Write a part of a wheel that a client sends. After an empty part it is complete, if its sha256 is right."""
        path = self._path_of(wheel)
        partial = path.with_name(f".{path.name}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("r+b" if offset else "wb") as stream:
            stream.seek(offset)
            stream.write(data)
        if not data and sha256_of(partial) == wheel.sha256:
            partial.rename(path)

    def _path_of(self, wheel: StoredBuild) -> Path:
        """Where a wheel is that was built here, else where one is that a client sent or will send."""
        built = self._root / "builds" / wheel.digest / wheel.wheel.name
        return built if built.is_file() else self._root / "received" / wheel.sha256 / wheel.wheel.name


def run_task(task: Task, *parts: bytes) -> WorkerAnswer:
    """What Dask calls on a worker: run the task whose recipe is in these parts."""
    return cast("Service", get_worker().plugins[PLUGIN]).run(task, parts)


def keep(part: bytes) -> bytes:
    """What Dask calls for a part of a recipe: the result, which Dask gives to the tasks that need it, is the part."""
    return part


def serve(method: str, *arguments: object, dask_worker: Worker | None = None) -> Any:  # noqa: ANN401
    """What Dask calls on a worker at once, whatever tasks run there: `read` or `write` of its plugin."""
    return getattr(cast("Worker", dask_worker).plugins[PLUGIN], method)(*arguments)
