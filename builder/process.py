"""Run programs with their output in a log file, end everything that they start, and kill orphans of a killed run.

Each program has a keeper (`builder.gate.system.process_tree`): the program's parent, which ends every descendant of the
program with it, and when buildfarm ends in any way. The code of a wheel can kill the keeper. Its processes then become
children of buildfarm, which knows them by their session and kills them.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

from builder.errors import SECRET_PARAMETERS, mask_credentials, mask_log
from builder.gate.system import process_tree
from builder.gate.system.process_tree import kill_tree
from builder.gate.system.rlimits import become_subreaper

T = TypeVar("T")

#: Environment variable of every program that `run` starts. Its value is the owner, by which the next run finds orphans.
OWNER_VARIABLE = "BUILDFARM_OWNER"

#: The variables of the user's shell that the code of a wheel gets: user, language, loader, settings of torch and CUDA.
_FOR_WHEELS = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|TZ|LANG|LC_\w+|XDG_CACHE_HOME|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|(?:CUDA|CUDNN|CUBLAS|NCCL|NVIDIA|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|GOMP|KMP|MKL|OPENBLAS)_\w+"
)

_running: dict[int, str] = {}  # ids of keepers, which nobody else has until `run` has waited for them, and their owners
_running_lock = threading.Lock()
_stopping = threading.Event()
_interrupts: list[float] = []  # times of the signals that interrupted this process, on the clock `time.monotonic`

#: Time in which further signals do not interrupt the end of a run.
SECONDS_TO_STOP = 5.0
#: Seconds between two looks at a keeper that does not answer, and for a signal.
_LOOK_SECONDS = 1.0


class Interrupted(BaseException):
    """buildfarm is stopping; no thread may start a program. `except Exception` does not catch it."""


def wheel_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of the user's shell that code of a wheel gets; none has a name like that of a secret."""
    ends = tuple(f"_{end.upper()}" for end in SECRET_PARAMETERS)
    return {n: v for n, v in variables.items() if _FOR_WHEELS.fullmatch(n) and not n.upper().endswith(ends)}


@dataclass(frozen=True)
class Limits:
    """Limits of a program and of everything that it starts; 0 is no limit."""

    #: time.
    seconds: float = 0
    #: Number of processes at the same time.
    processes: int = 0
    #: Size of each file that they write.
    file_bytes: int = 0


#: For the code of wheels: far more than imports and ops need.
WHEEL_LIMITS = Limits(processes=1000, file_bytes=4 << 30)
_NO_LIMITS = Limits()
#: How the last line of the output of a program begins that reached a limit.
ENDED = "buildfarm ended the program: "


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit status, negative for a signal, and the limit that ended it.

    The limit is "time", "processes", "stopped" (by a signal), "keeper" (the program stopped or killed its keeper),
    "left" (a process of the program cannot be killed) or "".
    """

    status: int
    limit: str = ""


def run(
    argv: Sequence[str],
    *,
    log: Path,
    owner: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    limits: Limits = _NO_LIMITS,
) -> int:
    """Run a program, append its output to `log`, and return its exit status; a negative status is a signal number.

    The program gets `env` (default: the environment of this process) and the owner variable. Every process that it
    started has ended on return.

    Raises:
        Interrupted: `kill_all` was called before or during the run.
        FileNotFoundError: the program does not exist.

    """
    with log.open("ab") as stream:
        stream.write(f"+ {mask_credentials(subprocess.list2cmdline(argv))}\n".encode())
        stream.flush()
        start = stream.tell()
        try:
            ended = run_contained(argv, stream, stream, owner=owner, cwd=cwd, env=env, limits=limits)
        finally:
            mask_log(log, start)
        if ended.limit:
            stream.write(f"{ENDED}it {describe_limit(ended.limit, limits)}\n".encode())
    return ended.status


def log_size(log: Path) -> int:
    """Bytes in a log file, which is where the output of the next program begins; 0 when the file does not exist."""
    return log.stat().st_size if log.exists() else 0


def text_since(log: Path, offset: int) -> str:
    """Text of a log file after its first `offset` bytes; empty when the file does not exist."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        stream.seek(offset)
        return stream.read().decode(errors="replace")


def complete_lines(log: Path, offset: int) -> tuple[list[str], int]:
    """The complete lines of a log file after its first `offset` bytes, and the offset of their end.

    A file that is shorter than `offset` was replaced, and is read from its beginning.
    """
    if not log.exists():
        return [], offset
    with log.open("rb") as stream:
        start = offset if stream.seek(0, 2) >= offset else 0
        stream.seek(start)
        text, newline, _ = stream.read().rpartition(b"\n")
    return text.decode(errors="replace").splitlines(), start + len(text) + len(newline)


def run_contained(
    argv: Sequence[str],
    out: IO[bytes],
    err: IO[bytes],
    *,
    owner: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    limits: Limits = _NO_LIMITS,
) -> Ended:
    """Run a program with its output in files, like `run`; return how it ended. All of its processes have ended then."""
    words = [sys.executable, "-I", "-S", str(process_tree.__file__)]
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, _running_lock:
            if _stopping.is_set():
                raise Interrupted
            become_subreaper()
            figures = (theirs.fileno(), limits.file_bytes, limits.seconds, limits.processes)
            keeper = subprocess.Popen(
                [*words, *map(str, figures), *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env={**(os.environ if env is None else env), OWNER_VARIABLE: owner},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in a terminal does not reach it
            )
            _running[keeper.pid] = owner
        try:
            answer = _answer(ours, keeper.pid, limits)
            keeper.wait()
        except BaseException:
            # Ctrl-C in the waiting thread: after the `finally` below, `kill_all` no longer knows this keeper.
            kill_tree(keeper.pid)
            kill_orphans(owner)
            keeper.wait()
            raise
        finally:
            with _running_lock:
                _running.pop(keeper.pid, None)
    if _stopping.is_set():
        raise Interrupted
    if answer:
        return _ended(argv[0], *answer)
    _kill_strangers()  # the program killed or stopped its keeper
    kill_orphans(owner)
    return Ended(-signal.SIGKILL, "keeper")


def describe_limit(limit: str, limits: Limits) -> str:
    """Return what a program did that was ended for a limit, as the end of a sentence that begins with the program."""
    return {
        "time": f"did not finish within {limits.seconds:g} s",
        "processes": f"had more than {limits.processes} processes at the same time",
        "stopped": "was stopped by a signal such as SIGSTOP",
        "keeper": "killed or stopped the process of buildfarm that started it",
        "left": "left a process that does not end when it is killed",
    }[limit]


def raise_if_interrupted() -> None:
    """Raise Interrupted if `kill_all` was called. Loops that wait for something other than a program call this."""
    if _stopping.is_set():
        raise Interrupted


def in_threads(tasks: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Run tasks in at most so many threads, and return what they return, in order.

    If a task raises, those that run end, no other begins, and its exception is raised. An exception in this thread,
    such as Ctrl-C, ends every program.
    """
    from concurrent.futures import ThreadPoolExecutor, wait  # noqa: PLC0415 - loads slowly, and `--help` needs none

    errors: list[BaseException] = []

    def run(task: Callable[[], T]) -> list[T]:
        try:
            return [] if errors else [task()]
        except BaseException as error:
            errors.append(error)
            raise

    with ThreadPoolExecutor(threads) as pool:
        try:
            running = set(futures := [pool.submit(run, task) for task in tasks])
            while running:  # a signal that the kernel gives to another thread does not end a wait of this one
                _, running = wait(running, _LOOK_SECONDS)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_all()
            raise
    if errors:
        raise errors[0]
    return [found for one in futures for found in one.result()]


def kill_all() -> None:
    """Kill every running program and the programs that it started. From now on, `run` raises Interrupted."""
    _stopping.set()
    with _running_lock:
        for pid, owner in _running.items():
            kill_tree(pid)
            kill_orphans(owner)


def handle_signals() -> None:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, and SIGINT if it is not ignored.

    `timeout` sends a signal twice at once, and a person may press Ctrl-C twice. A second signal within
    SECONDS_TO_STOP is ignored: it would interrupt the code that ends the compilers.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not _interrupts or time.monotonic() - _interrupts[-1] > SECONDS_TO_STOP:
            _interrupts.append(time.monotonic())
            raise KeyboardInterrupt

    # A shell that starts a program in the background makes it ignore SIGINT.
    sigint = (signal.SIGINT,) if signal.getsignal(signal.SIGINT) is signal.default_int_handler else ()
    for number in (signal.SIGTERM, signal.SIGHUP, *sigint):
        signal.signal(number, interrupt)


def was_interrupted() -> bool:
    """Whether a signal has raised KeyboardInterrupt.

    Other code can make another exception of it: `Condition.wait`, in which it arrives as the lock is taken again,
    raises RuntimeError.
    """
    return bool(_interrupts)


def kill_orphans(owner: str) -> list[int]:
    """Kill the processes of an owner whose program has ended; return their process ids.

    Call this only while holding the owner's lock, so that no live run owns those processes. The owner variable in the
    environment identifies them; a process id could have been reused.
    """
    marker = f"{OWNER_VARIABLE}={owner}".encode()
    killed: list[int] = []
    while found := [pid for pid in process_tree.parents() if pid not in killed and _has_variable(pid, marker)]:
        for pid in found:  # before it is killed, a process may start another: look again
            process_tree.send(pid, signal.SIGKILL)
        killed += found
    return killed


def _answer(keeper: socket.socket, pid: int, limits: Limits) -> list[str]:
    """Return the two words of a keeper's answer; [] if the keeper was killed, or is killed here because it hangs."""
    keeper.settimeout(_LOOK_SECONDS)
    end = time.monotonic() + limits.seconds + 2 * process_tree.END_SECONDS if limits.seconds else float("inf")
    while True:
        try:
            return keeper.recv(64).decode().split()
        except TimeoutError:
            if time.monotonic() > end or process_tree.is_stopped(pid):
                kill_tree(pid)


def _ended(program: str, first: str, second: str) -> Ended:
    """Read the two words of a keeper's answer; raises OSError if the program could not be started."""
    if first == "errno":
        raise OSError(int(second), os.strerror(int(second)), program)
    return Ended(int(first), second.strip("-"))


def _kill_strangers() -> None:
    """Kill what a killed keeper has left: children of this process that it has not started, by their session.

    A process can leave its session, but it cannot enter an existing one.
    """
    own, deadline = str(os.getsid(0)), time.monotonic() + process_tree.END_SECONDS
    while time.monotonic() < deadline:
        with _running_lock:
            children = [pid for pid, parent in process_tree.parents().items() if parent == os.getpid()]
            strangers = [pid for pid in children if pid not in _running and _session(pid) not in ("", own)]
            for pid in strangers:
                kill_tree(pid)
        if not strangers:
            return
        for pid in strangers:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _session(pid: int) -> str:
    return "".join(process_tree.stat_fields(pid)[3:4])


def _has_variable(pid: int, variable: bytes) -> bool:
    """Whether another process was started with this environment variable; False for a process that has ended."""
    with suppress(OSError):
        return pid != os.getpid() and variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
