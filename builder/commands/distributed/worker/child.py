"""The program in which a worker runs one task: it gets the task through a socket, and sends stages and the answer back.

A build that runs out of memory, or a wheel that crashes, ends this process and not the worker. When the worker ends in
any way, the kernel sends SIGTERM, and this process ends everything that it started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from builder.commands.building.build_run import BuildRun
from builder.commands.building.executor_choice import choose_executor
from builder.commands.distributed.parcel import LOCK, LOCKS, keep_locks, locks_in, moved, unpack
from builder.commands.distributed.protocol import (
    Answer,
    BuildTask,
    Failure,
    ProofTask,
    SmokeTask,
    Task,
    WheelRef,
)
from builder.commands.folders import open_store
from builder.errors import BuildfarmError, Code
from builder.gate.amounts import size_text
from builder.gate.system.nvidia import smi
from builder.log import set_verbosity
from builder.matrix.config import Matrix
from builder.process import handle_signals, kill_all
from builder.progress.display import Progress
from builder.proofs.cells.cell_environment import cell_environments
from builder.proofs.cells.cell_run import CellRunner
from builder.proofs.cells.prover import WheelProver
from builder.store import Store, StoredBuild
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.uv import DiskFullError, KilledError

#: Seconds between two reports of the stage.
REPORT_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Work:
    """What a worker gives to this process."""

    #: What to do.
    task: Task
    #: The archive with the files of the recipe.
    parts: Sequence[bytes]
    #: The folder of the worker's store.
    store: Path
    #: Number of parallel compilers.
    jobs: int
    #: For a proof, the wheel file.
    wheel: Path | None = None


def main() -> None:
    """Run the task that comes through the socket whose number is the argument."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    handle_signals()
    number = int(sys.argv[1])
    os.set_inheritable(number, False)
    channel = Connection(number)
    try:
        channel.send(run(channel.recv(), channel))
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        kill_all()
        sys.exit(130)


def run(work: Work, channel: Connection) -> Answer:
    """Run a task; its stages go into the channel."""
    set_verbosity(quiet=True, verbose=False)
    started = time.monotonic()
    try:
        store = open_store(work.store)
        with store.work(f"task-{work.task.key.rpartition('-')[2][:16]}") as folder:
            recipe = moved(work.task.recipe, unpack(work.parts, folder))
            keep_locks(store.root / "envs", locks_in(folder / LOCKS))
            # buildfarm.lock lies beside matrix.yaml.
            matrix = replace(work.task.settings.matrix, path=(folder / LOCK).with_name("matrix.yaml"))
            task = replace(work.task, recipe=recipe, settings=replace(work.task.settings, matrix=matrix))
            if isinstance(task, BuildTask):
                answer = _build(task, store, work.jobs, channel)
            elif isinstance(task, ProofTask):
                _use_gpu(task.gpu)
                answer = _prove(task, store, cast("Path", work.wheel), channel)
            else:
                _use_gpu(task.gpu)
                answer = _smoke(task, store, cast("Path", work.wheel), channel)
    except BuildfarmError as error:
        # What the preflight finds, a full disk and a lack of memory say something about this machine.
        answer = Answer(failure=Failure.of(error, machine=True))
    except OSError as error:
        answer = Answer(failure=Failure.of_os_error(error))
    return replace(answer, seconds=round(time.monotonic() - started, 1))


def _build(task: BuildTask, store: Store, jobs: int, channel: Connection) -> Answer:
    settings = task.settings
    environments = Environments(store, settings.matrix.torch_index, python_downloads=settings.python_downloads)
    executor = choose_executor(settings, [task.build], environments)
    started, progress = time.time(), Progress()
    builder = BuildRun(
        store,
        executor,
        None,
        {task.recipe.name: task.recipe},
        jobs=jobs,
        minor_mismatch=settings.minor_mismatch,
        progress=progress,
    )
    with _reporting(progress, channel):
        (result,) = builder.build_all(builder.stored([task.build]))
    log = store.log(str(task.build))
    answer = Answer(
        log=(log.name, log.stat().st_size if log.is_file() else 0),
        locks=_locks_since(store.root / "envs", started),
        reused=result.reused,
        memory=max((use.memory for use in builder.timeline().uses.values()), default=0),
    )
    if result.error is not None:
        machine = isinstance(result.error, DiskFullError | KilledError)
        return replace(answer, failure=Failure.of(result.error, machine=machine))
    stored = cast("StoredBuild", result.stored)
    return replace(answer, wheel=WheelRef.of(stored))


def _use_gpu(model: str) -> None:
    """Let programs of wheels see one GPU of a model only: the op gate uses the first GPU that it sees."""
    rows = smi(["compute_cap", "uuid"]) if model else []
    found = [row.get("uuid") for row in rows if f"sm_{row.get('compute_cap', '').replace('.', '')}" == model]
    if found and found[0]:
        os.environ["CUDA_VISIBLE_DEVICES"] = found[0]


def _prove(task: ProofTask, store: Store, wheel: Path, channel: Connection) -> Answer:
    settings = task.settings
    environments = Environments(store, settings.matrix.torch_index, python_downloads=settings.python_downloads)
    images: Matrix | None = settings.matrix if task.in_docker else None
    prover = WheelProver(store, environments, images, pull=settings.pull, again=task.again)
    stored = StoredBuild(task.wheel.digest, wheel, task.wheel.record, sha256=task.wheel.sha256)
    log = store.log(f"prove-{task.wheel.sha256[:16]}-{task.cell}")
    log.write_bytes(b"")
    proofs = prover.prove(
        stored,
        replace(task.build, serves=(task.cell,)),
        task.recipe,
        log=log,
        stage=lambda text: channel.send(("stage", text)),
    )
    made = tuple(proof for proof in proofs if proof.cell == task.cell)
    return Answer(proofs=made, log=(log.name, log.stat().st_size))


def _smoke(task: SmokeTask, store: Store, wheel: Path, channel: Connection) -> Answer:
    settings = task.settings
    cells = cell_environments(
        settings.executor,
        settings.matrix,
        store,
        python_downloads=settings.python_downloads,
        pull=settings.pull,
    )
    log = store.log(f"smoke-{task.wheel.sha256[:16]}-{task.cell}")
    log.write_bytes(b"")
    runner = CellRunner(store, cells, log, lambda text: channel.send(("stage", text)), linkage=False)
    run = runner.run(task.cell, wheel, task.wheel.sha256, task.recipe)
    return Answer(proofs=run.proofs, gate=run.answer, log=(log.name, log.stat().st_size))


@contextmanager
def _reporting(progress: Progress, channel: Connection) -> Iterator[None]:
    """Send the state of the only build into the channel while the body runs."""
    stop = threading.Event()

    def report() -> None:
        last = ""
        while not stop.wait(REPORT_SECONDS):
            state = next(iter(progress.states().values()), "")
            if state and state != last:
                channel.send(("stage", state))
                last = state

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _locks_since(envs: Path, started: float) -> dict[str, str]:
    """The lock records of the environments that were used since a time."""
    used = [f"{path.name}.json" for path in envs.iterdir() if path.is_dir() and path.stat().st_mtime >= started - 1]
    return locks_in(envs, used)


def killed_by(status: int, memory: int) -> Failure:
    """Why this process ended without an answer."""
    if status == -signal.SIGKILL:
        sentence = f"the process of this task was killed, probably for lack of memory ({size_text(memory)} were free)"
    else:
        sentence = f"the process of this task ended with status {status}"
    return Failure("BuildfarmError", sentence, Code.WORKER_STOPPED, machine=True)


if __name__ == "__main__":
    main()
