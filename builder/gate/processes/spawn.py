"""Starts and ends the processes of the scheduler: the fork servers, and the process that tries import orders.

Every process has its own session, so Ctrl-C reaches only the scheduler, which then ends the others.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.gate.processes.journal import new_key
from builder.gate.system import rlimits
from builder.gate.system.exit_status import tail
from builder.gate.system.files import mapped_files
from builder.gate.system.process_tree import is_stopped, kill_tree
from builder.gate.tasks import LAUNCHER

#: The first bytes that a server gets: it may import the extension.
GO = b"go\n"
#: Seconds that sending a command may take, and the most bytes of an incomplete event.
_SEND_SECONDS, _MOST_PENDING = 5.0, 64 << 20
_DEBUG_LIBRARY = "libc_malloc_debug.so.0"

#: Without collections of garbage, the imports of torch take less time.
#: Sets up the parent-death signal and the crash handlers before it imports torch, which takes seconds and may crash.
_START = """\
import gc, sys
gc.disable()
sys.path.insert(0, sys.argv[1])
from builder.gate.system import crash, rlimits
rlimits.exit_with_parent(int(sys.argv[2]))
crash.install_crash_handlers()
from builder.gate.starter import main
main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""
_START_IMPORT_ORDER = """\
import sys
sys.path.insert(0, sys.argv[1])
from builder.gate.processes.import_order import main
main(*sys.argv[1:])
"""
_PYTHON = (sys.executable, "-I", "-X", "faulthandler")


def start_command(root: Path, roles: Sequence[Mapping[str, Any]], scheduler: int = 0) -> list[str]:
    """Return the command line of a starter for these roles: dictionaries with the fields of `starter.Role`.

    `scheduler` is the pid of the scheduler, by default this process. With -S, Python executes no code of installed
    packages when it starts.
    """
    words = [str(root), str(scheduler or os.getpid()), json.dumps(list(roles))]
    return [*_PYTHON, "-S", "-c", _START, *words]


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for every process: no threads at import, no CUDA context when torch counts GPUs."""
    return {**environment, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "LIBC_FATAL_STDERR_": "1"}


def heap_check_environment(environment: Mapping[str, str]) -> dict[str, str] | str:
    """Return the environment with glibc's heap checks, or the reason why they are not available."""
    version = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    found = re.match(r"glibc (\d+)\.(\d+)", version or "")
    if not found:
        return "the heap checks need glibc, which is not the C library of this machine"
    checked = {**plain_environment(environment), "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "1"}
    if (int(found.group(1)), int(found.group(2))) < (2, 34):
        return checked
    # Since 2.34 the checks are in a separate library in the folder of libc.
    for libc in sorted(path for path in mapped_files() if re.fullmatch(r"libc(\.so\.6|-[\d.]+\.so)", Path(path).name)):
        library = Path(libc).with_name(_DEBUG_LIBRARY)
        if library.is_file():
            before = environment.get("LD_PRELOAD")
            checked["LD_PRELOAD"] = f"{library}:{before}" if before else str(library)
            return checked
    where = f"{_DEBUG_LIBRARY} is not in the folder of libc (Debian: package libc6)"
    return f"glibc's heap checks are not installed: {where}"


class Process:
    """A process in its own session, with a directory for its files."""

    def __init__(self, task_dir: Path) -> None:
        self.task_dir = task_dir
        self.started = time.monotonic()
        self.popen: subprocess.Popen[bytes] | AdoptedProcess | None = None  # until it has started

    def _run(self, command: Sequence[str], environment: Mapping[str, str], fds: Sequence[int]) -> None:
        with (self.task_dir / "log").open("ab") as log:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "TMPDIR": str(self.task_dir)},  # deleted with the directory
                cwd=self.task_dir,
                pass_fds=tuple(fds),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its group; 0 if it has not started."""
        return self.popen.pid if self.popen else 0

    def ended(self) -> int | None:
        """Return its wait status, or None while it runs."""
        code = self.popen.poll() if self.popen else None
        return None if code is None else (-code if code < 0 else code << 8)

    def log(self) -> str:
        """Return the last 64 KiB of its output."""
        return tail(self.task_dir / "log", 1 << 16)

    def terminate(self, patience: float = 2.0) -> None:
        """Send SIGTERM, so that it can end its processes in other groups; after `patience` seconds SIGKILL."""
        if self.popen and self.popen.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            self.wait(patience)
        self.kill()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for its end, at most this long."""
        if self.popen:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(seconds)

    def kill_all(self) -> None:
        """Kill it and every process below it; none of these runs after its parent has ended."""
        kill_tree(self.pid)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to its group."""
        if self.popen and self.popen.returncode is None:
            rlimits.kill_group(self.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # a new fork has no group yet
            self.popen.wait()


class AdoptedProcess:
    """A process whose parent has ended, so that this process, a subreaper, is its parent. Has methods of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, minus the signal if one killed it, or None while it runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # it has ended, and somebody else knows how
                ended, status = self.pid, 1 << 8
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired after so many seconds."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork of the starter", timeout or 0)
            time.sleep(0.005)
        return code


class ImportOrderProcess(Process):
    """The process of the check "import-order", without torch; `key` is that of its journal."""

    def __init__(self, root: Path, task_dir: Path, launcher: socket.socket | None) -> None:
        """Start it; it gets the socket of the launcher."""
        super().__init__(task_dir)
        self.limit = ""  # "stopped" if a signal has stopped it
        self.key = new_key()
        descriptors = [pipe_with(self.key), *([launcher.detach()] if launcher else [])]
        try:
            command = [*_PYTHON, "-S", "-c", _START_IMPORT_ORDER, str(root), str(task_dir), *map(str, descriptors)]
            self._run(command, plain_environment(os.environ), descriptors)
        finally:
            for one in descriptors:
                os.close(one)

    def end_if_stopped(self) -> bool:
        """Kill it if a signal has stopped it; return whether it has ended."""
        if self.ended() is None and is_stopped(self.pid):
            self.limit = "stopped"
            self.kill_all()
        return self.ended() is not None


class ForkServerProcess(Process):
    """A fork server from the scheduler's side: sends commands, reads events."""

    def __init__(self, role: str, task_dir: Path) -> None:
        """`role` is PLAIN, HEAP_CHECKS or JUDGE. It runs when `start_together` has been called."""
        super().__init__(task_dir)
        self.role, self._awaits_fork = role, False
        self._commands, self._commands_read = socket.socketpair()
        self._commands.settimeout(_SEND_SECONDS)  # a server that is stopped does not stop the scheduler
        self.events, self._events_write = os.pipe()
        os.set_blocking(self.events, False)
        self._pending = b""
        self.importing = "torch"
        self.facts: dict[str, Any] | None = None
        self.closed = False

    def start_together(
        self,
        command: Callable[[Sequence[Mapping[str, Any]]], list[str]],
        environment: Mapping[str, str],
        servers: Sequence[ForkServerProcess],
        launcher: socket.socket | None = None,
    ) -> None:
        """Start a starter that becomes this server, or forks it and the others; `command` gets their roles.

        `launcher` is the socket that the launcher serves.
        """
        roles: list[dict[str, Any]] = [{"name": LAUNCHER, "commands": launcher.fileno()}] if launcher else []
        for one in servers:
            ends = {"commands": one._commands_read.fileno(), "events": one._events_write}
            roles.append({"name": one.role, **ends, "folder": str(one.task_dir)})
        descriptors = [role[key] for role in roles for key in ("commands", "events") if key in role]
        try:
            self._run(command(roles), environment, descriptors)
        finally:
            for one in servers:
                one._commands_read.close()
                os.close(one._events_write)
        for one in servers:
            one.popen, one._awaits_fork = self.popen, len(roles) > 1

    def adopt(self, pid: int) -> None:
        """The starter has forked this server. Raises LookupError if it cannot have done that."""
        if not self._awaits_fork:
            raise LookupError("this server was not forked by a starter")
        self.wait()  # the starter ends now, and this process becomes the parent of the server
        self._awaits_fork, self.popen = False, AdoptedProcess(pid)

    def ended(self) -> int | None:
        """Return its wait status, or None while it runs."""
        status = super().ended()
        # A starter that has ended well has forked the server.
        return None if self._awaits_fork and status == 0 else status

    def go(self) -> None:
        """Allow it to import the extension."""
        with contextlib.suppress(OSError):
            self._commands.sendall(GO)

    def send_command(self, key: bytes = b"", **command: Any) -> None:  # noqa: ANN401
        """Send a command and the key of a task's journal; if the server has ended, the event pipe shows it."""
        descriptors = [pipe_with(key)] if key else []
        with contextlib.suppress(OSError):
            socket.send_fds(self._commands, [json.dumps(command).encode() + b"\n"], descriptors)
        for one in descriptors:
            os.close(one)

    def read(self) -> list[dict[str, Any]] | None:
        """Return the events that have arrived; None at the end of the pipe. Raises ValueError if one is no event."""
        try:
            data = os.read(self.events, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _MOST_PENDING:
            raise ValueError("an event is too long")
        events = [json.loads(line) for line in lines]
        if not all(isinstance(one, dict) for one in events):
            raise ValueError("an event is not an object")
        return events

    def close(self, patience: float = 2.0) -> None:
        """End it and its children: close its pipe, wait `patience` seconds if it serves, then send SIGKILL."""
        if self.closed:
            return
        self.closed = True
        self._commands.close()
        self.wait(patience if self.facts is not None else 0)
        self.kill()
        os.close(self.events)


def pipe_with(data: bytes) -> int:
    """Return a new descriptor from which one process can read these few bytes once."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return read


def terminate_as_interrupt() -> None:
    """Raise Interrupted on SIGTERM, SIGHUP and SIGINT, so that `finally` blocks end every process."""

    def interrupt(number: int, _frame: object) -> None:
        raise GateInterrupted(number)

    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(one, interrupt)


class GateInterrupted(BaseException):
    """A signal asked the gate to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
