"""Programs of a build: output to its log, their families ended with the farm, orphans of a killed run found."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: Every program started for a build carries this variable, so that the next run recognises what a killed farm left.
JOB_VARIABLE = "BUILDFARM_JOB"

_running: dict[int, subprocess.Popen[bytes]] = {}
_guard = threading.Lock()
_ending = threading.Event()


class Interrupted(BaseException):
    """The farm is ending; a worker thread must not start another program."""


def masked(text: str) -> str:
    """Text without the credentials of the URLs in it: `https://***@host/simple`."""
    return re.sub(r"//[^/\s]*@", "//***@", text)


def run(
    argv: Sequence[str], *, log: Path, job: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> int:
    """Run a program with its output appended to `log`; returns its exit status (negative: the signal that ended it).

    Raises Interrupted once `end_all` was called, FileNotFoundError when the program does not exist.
    """
    environment = {**(os.environ if env is None else env), JOB_VARIABLE: job}
    with log.open("ab") as stream:
        stream.write(f"+ {masked(subprocess.list2cmdline(argv))}\n".encode())
        stream.flush()
        with _guard:
            if _ending.is_set():
                raise Interrupted
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=environment,
                start_new_session=True,  # ninja and nvcc below it are ended as one group
            )
            _running[process.pid] = process
        try:
            status = process.wait()
        except BaseException:
            # Ctrl-C, in the thread that waits: once forgotten here, nobody else could end it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            with _guard:
                _running.pop(process.pid, None)
    if _ending.is_set():
        raise Interrupted
    return status


def stop_if_ending() -> None:
    """Raise Interrupted once `end_all` was called: for whoever waits for something else than a program."""
    if _ending.is_set():
        raise Interrupted


def end_all() -> None:
    """End every program still running, with its children; `run` raises Interrupted from now on."""
    _ending.set()
    with _guard:
        for pid in _running:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def reap_orphans(job: str) -> list[int]:
    """Kill what an earlier, killed farm left running for this job; returns the process ids.

    Call it only while holding the job's lock: then nothing alive can own those processes. They are known by the
    variable they carry in their environment, which a reused process id would not have.
    """
    marker = f"{JOB_VARIABLE}={job}".encode()
    killed = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        with suppress(OSError):
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed
