"""The conductor's hold on what it starts: nurseries, and the one process that tries import orders.

Every process gets a session of its own, so a ^C reaches the conductor alone, and the conductor ends the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.gate import limits
from builder.gate.ends import tail

_DEBUG_LIBRARY = "libc_malloc_debug.so.0"

#: What must hold while torch is imported comes before it is: that takes seconds, and may crash.
_NURSERY = """\
import sys
sys.path.insert(0, sys.argv[1])
from builder.gate import crash, limits
limits.die_with_parent(int(sys.argv[5]))
crash.watch_crashes()
from builder.gate.nursery import main
main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "guarded")
"""


def nursery_command(root: Path, commands: int, events: int, guarded: bool) -> list[str]:
    """How a nursery is started."""
    kind = "guarded" if guarded else "plain"
    return [*_python(), "-c", _NURSERY, str(root), str(commands), str(events), kind, str(os.getpid())]


def alone_command(root: Path, function: str, room: Path) -> list[str]:
    """How a function `(spec, root) -> outcomes` is run in a process of its own, which need not import torch."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from builder.gate.alone import main; main(*sys.argv[1:])"
    return [*_python(), "-c", code, str(root), function, str(room)]


def _python() -> list[str]:
    return [sys.executable, "-I", "-X", "faulthandler"]


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For every process: no thread at import, no CUDA context where torch only asks whether there is a GPU."""
    return {**environment, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "LIBC_FATAL_STDERR_": "1"}


def guarded_environment(environment: Mapping[str, str]) -> dict[str, str] | str:
    """The environment under glibc's heap checks, or the reason why there is none."""
    version = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    found = re.match(r"glibc (\d+)\.(\d+)", version or "")
    if not found:
        return "the C library here is not glibc, whose heap checks are used"
    guarded = {**plain_environment(environment), "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "1"}
    if (int(found.group(1)), int(found.group(2))) < (2, 34):
        return guarded
    # Since 2.34 the checks lie in a library of their own, beside libc itself.
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()}
    for libc in sorted(path for path in libraries if re.fullmatch(r"libc(\.so\.6|-[\d.]+\.so)", Path(path).name)):
        library = Path(libc).with_name(_DEBUG_LIBRARY)
        if library.is_file():
            before = environment.get("LD_PRELOAD")
            guarded["LD_PRELOAD"] = f"{library}:{before}" if before else str(library)
            return guarded
    return f"glibc's heap checks are not installed here: {_DEBUG_LIBRARY} is not beside libc (Debian: package libc6)"


class Process:
    """A process in a session of its own, with a room for its files."""

    def __init__(
        self, command: Sequence[str], room: Path, environment: Mapping[str, str], fds: Sequence[int] = ()
    ) -> None:
        self.room = room
        self.started = time.monotonic()
        with (room / "log").open("wb") as log:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "TMPDIR": str(room)},  # what is left there goes with the room
                cwd=room,
                pass_fds=tuple(fds),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its number, which is its group's too."""
        return self.popen.pid

    def ended(self) -> int | None:
        """Its wait status, once it has ended."""
        code = self.popen.poll()
        return None if code is None else (-code if code < 0 else code << 8)

    def log(self) -> str:
        """The last of what it printed."""
        return tail(self.room / "log", 1 << 16)

    def terminate(self, patience: float = 2.0) -> None:
        """SIGTERM, so that it can end what it started in other groups; then SIGKILL."""
        if self.popen.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(patience)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to its group."""
        if self.popen.returncode is None:
            limits.kill_group(self.pid)
            self.popen.wait()


class NurseryProcess(Process):
    """A nursery seen from outside: commands to it, events from it."""

    def __init__(self, command: Any, room: Path, environment: Mapping[str, str]) -> None:  # noqa: ANN401
        """`command` is called with the two ends the nursery gets: `(commands, events) -> argument list`."""
        commands_read, self._commands = os.pipe()
        self.events, events_write = os.pipe()
        os.set_blocking(self.events, False)
        try:
            argv = command(commands_read, events_write)
            super().__init__(argv, room, environment, (commands_read, events_write))
        finally:
            os.close(commands_read)
            os.close(events_write)
        self._pending = b""
        self.importing = "torch"
        self.facts: dict[str, Any] | None = None
        self.closed = False

    @property
    def ready(self) -> bool:
        """Whether it has imported everything and serves."""
        return self.facts is not None and not self.closed

    def tell(self, **command: Any) -> None:  # noqa: ANN401
        """Send a command; one that ended meanwhile is noticed at its events."""
        with contextlib.suppress(BrokenPipeError, OSError):
            os.write(self._commands, json.dumps(command).encode() + b"\n")

    def read(self) -> list[dict[str, Any]] | None:
        """The events that have come; None when there will be no more."""
        try:
            data = os.read(self.events, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self, patience: float = 2.0) -> None:
        """End it and all its children: by closing its pipe, by SIGKILL if it does not listen."""
        if self.closed:
            return
        self.closed = True
        os.close(self._commands)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience if self.facts is not None else 0)
        self.kill()
        os.close(self.events)


def terminate_as_interrupt() -> None:
    """Let SIGTERM and SIGHUP take the way of ^C, so that every process started is ended."""

    def interrupt(number: int, _frame: object) -> None:
        raise Interrupted(number)

    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(one, interrupt)


class Interrupted(BaseException):
    """A signal asks the gate to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
