"""Run programs with their output in a log file, kill them when buildfarm stops, and kill orphans of a killed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: Environment variable of every program that `run` starts. Its value is the owner, by which the next run finds orphans.
OWNER_VARIABLE = "BUILDFARM_OWNER"

_running: dict[int, str] = {}  # process ids, which nobody else has until `run` has waited for them, and their owners
_running_lock = threading.Lock()
_stopping = threading.Event()


class Interrupted(BaseException):
    """buildfarm is stopping; no thread may start a program. `except Exception` does not catch it."""


def mask_credentials(text: str) -> str:
    """Return the text with `***` in place of the credentials in URLs: `https://***@host/simple`."""
    return re.sub(r"//[^/\s]*@", "//***@", text)


def run(
    argv: Sequence[str], *, log: Path, owner: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> int:
    """Run a program, append its output to `log`, and return its exit status; a negative status is a signal number.

    The program gets `env` (default: the environment of this process) and the owner variable.

    Raises:
        Interrupted: `kill_all` was called before or during the run.
        FileNotFoundError: the program does not exist.

    """
    environment = {**(os.environ if env is None else env), OWNER_VARIABLE: owner}
    with log.open("ab") as stream:
        stream.write(f"+ {mask_credentials(subprocess.list2cmdline(argv))}\n".encode())
        stream.flush()
        with _running_lock:
            if _stopping.is_set():
                raise Interrupted
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal does not reach it
            )
            _running[process.pid] = owner
        try:
            status = process.wait()
        except BaseException:
            # Ctrl-C in the waiting thread: after the `finally` below, `kill_all` no longer knows this process.
            _kill_tree(process.pid)
            kill_orphans(owner)
            raise
        finally:
            with _running_lock:
                _running.pop(process.pid, None)
    if status < 0:  # a signal ended the program, but not the programs that it had started
        kill_orphans(owner)
    if _stopping.is_set():
        raise Interrupted
    return status


def raise_if_interrupted() -> None:
    """Raise Interrupted if `kill_all` was called. Loops that wait for something other than a program call this."""
    if _stopping.is_set():
        raise Interrupted


def kill_all() -> None:
    """Kill every running program and the programs that it started. From now on, `run` raises Interrupted."""
    _stopping.set()
    with _running_lock:
        for pid, owner in _running.items():
            _kill_tree(pid)
            kill_orphans(owner)


def kill_orphans(owner: str) -> list[int]:
    """Kill the processes of an owner whose program has ended; return their process ids.

    Call this only while holding the owner's lock, so that no live run owns those processes. The owner variable in the
    environment identifies them; a process id could have been reused.
    """
    marker = f"{OWNER_VARIABLE}={owner}".encode()
    killed: list[int] = []
    while found := [pid for pid in _processes() if pid not in killed and _has_variable(pid, marker)]:
        for pid in found:  # before it is killed, a process may start another: look again
            _send(pid, signal.SIGKILL)
        killed += found
    return killed


def _kill_tree(root: int) -> None:
    """Kill a process and its descendants, also those in process groups of their own, as ninja's commands are.

    Each process is stopped before its children are read, so that it cannot start another.
    """
    stopped: set[int] = set()
    found = {root}
    while found:
        for pid in found:
            _send(pid, signal.SIGSTOP)
        stopped |= found
        found = {pid for pid in _processes() if _parent(pid) in stopped} - stopped
    for pid in stopped:
        _send(pid, signal.SIGKILL)


def _processes() -> list[int]:
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in numbers if pid != os.getpid()]


def _has_variable(pid: int, variable: bytes) -> bool:
    """Whether a process was started with this environment variable; False for a process that has ended."""
    with suppress(OSError):
        return variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _parent(pid: int) -> int:
    with suppress(OSError):  # the name of the program, in parentheses, may contain any character
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, number)
