"""The program in which a worker runs one task: it gets the task through a socket, and sends stages and the answer back.

A build that runs out of memory, or a wheel that crashes, ends this process and not the worker. When the worker ends in
any way, the kernel sends SIGTERM, and this process ends everything that it started.
"""

import ctypes
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from builder.commands.building.preflight import choose_executor
from builder.commands.building.story import LocalRun
from builder.commands.distributed import protocol
from builder.commands.distributed.protocol import BuildTask, CheckTask, Task, WorkerAnswer
from builder.commands.folders import open_store
from builder.errors import BuildfarmError, MissingToolError, PreflightError
from builder.log import set_verbosity
from builder.matrix.compat import use_facts_of
from builder.process import handle_signals, kill_all
from builder.progress.display import repeated
from builder.proofs.cells.prover import WheelProver
from builder.store import Store
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.uv import MachineFaultError

#: Seconds between two reports of the stage.
REPORT_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Work:
    """What a worker gives to this process."""

    #: task, parts: what to do, and the archive with the files of the recipe.
    task: Task
    parts: Sequence[bytes]
    #: store, jobs: the folder of the worker's store, and the number of parallel compilers.
    store: Path
    jobs: int
    #: For checks, the wheel file.
    wheel: Path | None = None


def main() -> None:
    """Run the task that comes through the socket whose number is the argument."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    handle_signals()
    number = int(sys.argv[1])
    os.set_inheritable(number, False)
    channel = Connection(number)
    try:
        channel.send(run(channel.recv(), channel.send))
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        kill_all()
        sys.exit(130)


def run(work: Work, report: Callable[[str], None]) -> WorkerAnswer:
    """Run a task; `report` gets its stages."""
    set_verbosity(quiet=True, verbose=False)
    try:
        store = open_store(work.store)
        with store.work(f"task-{work.task.key.rpartition('-')[2][:16]}") as folder:
            recipe = protocol.moved(work.task.recipe, protocol.unpack(work.parts, folder))
            protocol.keep_locks(store.root / "envs", protocol.locks_in(folder / protocol.LOCKS))
            # buildfarm.lock and facts.yaml lie beside matrix.yaml.
            use_facts_of(folder)
            matrix = replace(work.task.settings.matrix, path=(folder / protocol.LOCK).with_name("matrix.yaml"))
            task = replace(work.task, recipe=recipe, settings=replace(work.task.settings, matrix=matrix))
            if isinstance(task, BuildTask):
                return _build(task, store, work.jobs, report)
            return _check(task, store, cast("Path", work.wheel), report)
    except PreflightError as error:
        hints = tuple(dict.fromkeys(hint for problem in error.problems for hint in problem.hints))
        sentence = "; ".join(map(str, error.problems))
        return WorkerAnswer(error=MissingToolError(sentence, error.code, hints=hints), machine_fault=True)
    except BuildfarmError as error:
        # What the preflight finds, a full disk and a lack of memory say something about this machine.
        return WorkerAnswer(error=error, machine_fault=True)
    except OSError as error:
        return protocol.refused(error)


def _build(task: BuildTask, store: Store, jobs: int, report: Callable[[str], None]) -> WorkerAnswer:
    settings = task.settings
    environments = Environments(store, settings.matrix.torch_index)
    executor = choose_executor(settings, [task.build], environments)
    recipes, mismatch = {task.recipe.name: task.recipe}, settings.minor_mismatch
    started, last = time.time(), ""
    builder = LocalRun(store, recipes, None, executor, jobs=jobs, minor_mismatch=mismatch)

    def report_state() -> None:
        nonlocal last
        state = next(iter(builder.progress.states().values()), "")
        if state and state != last:
            report(last := state)

    with repeated(report_state, REPORT_SECONDS):
        (result,) = builder.build_all(builder.stored([task.build]))
    log, envs = builder.log(task.build), store.root / "envs"
    used = [f"{path.name}.json" for path in envs.iterdir() if path.is_dir() and path.stat().st_mtime >= started - 1]
    return WorkerAnswer(
        error=result.error,
        machine_fault=isinstance(result.error, MachineFaultError),
        wheel=None if result.error else result.stored,
        log=zlib.compress(log.read_bytes()) if log.is_file() else b"",
        locks=protocol.locks_in(envs, used),
        reused=result.reused,
    )


def _check(task: CheckTask, store: Store, wheel: Path, report: Callable[[str], None]) -> WorkerAnswer:
    """Run the checks of a wheel in a cell."""
    settings, sent = task.settings, task.wheel
    log = store.log(f"check-{sent.sha256[:16]}-{task.cell}", task.recipe.folder)
    log.write_bytes(b"")
    environments = Environments(store, settings.matrix.torch_index)
    images = settings.matrix if settings.executor == "docker" else None
    prover = WheelProver(store, environments, images, again=task.again)
    build = replace(task.build, serves=(task.cell,))
    proofs = prover.prove(prover.subject(replace(sent, wheel=wheel), build, task.recipe), log=log, stage=report)
    made = tuple(proof for proof in proofs if proof.cell == task.cell)
    return WorkerAnswer(proofs=made, log=zlib.compress(log.read_bytes()))


if __name__ == "__main__":
    main()
