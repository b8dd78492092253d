"""The import check: import the modules of the installed wheel in a fresh process of the cell's Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.process import raise_if_interrupted
from builder.proof import Verdict
from builder.proofs.cells.import_failure import RaisedImport

#: Time limit. A normal import of torch takes seconds.
IMPORT_SECONDS = 300

#: Prefixes of the line that holds the result: modules may print other lines before and after.
_MARK, _RAISED = "buildfarm imported ", "buildfarm raised "

_PROGRAM = """
import faulthandler, importlib, json, platform, sys, traceback
faulthandler.enable()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        traceback.print_exc()
        chain = []
        while error and len(chain) < 20:
            chain.append([type(error).__name__, str(error)])
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        print("\\n{raised}" + json.dumps({"module": name, "chain": chain}))
        sys.exit(1)
import torch
print("\\n{mark}" + json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
    "glibc": platform.libc_ver()[1], "gpus": torch.cuda.device_count(),
}))
""".replace("{mark}", _MARK).replace("{raised}", _RAISED)


@dataclass(frozen=True)
class ImportOutcome:
    """Verdict of an import, the reason, and the versions it ran with."""

    verdict: Verdict
    reason: str
    evidence: dict[str, Any]


def try_import(interpreter: Path, modules: Sequence[str], log: Path | None = None) -> ImportOutcome:
    """Import the modules, in order, in a fresh process of the cell's Python; a crash does not affect this process.

    The output of a failed import is appended to the log.
    """
    try:
        done = _run([str(interpreter), *import_arguments(modules)])
    except subprocess.TimeoutExpired:
        return hanging_import(modules)
    outcome = judge_import(modules, done.returncode, done.stdout, done.stderr)
    if log and outcome.verdict is Verdict.FAILED:
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"+ import {', '.join(modules)}\n{done.stderr}")
    return outcome


def import_arguments(modules: Sequence[str]) -> list[str]:
    """Arguments of the cell's Python that import the modules."""
    return ["-I", "-X", "faulthandler", "-c", _PROGRAM, *modules]


def hanging_import(modules: Sequence[str]) -> ImportOutcome:
    """The outcome of an import that was killed after IMPORT_SECONDS."""
    return ImportOutcome(
        Verdict.FAILED, f"import of {', '.join(modules)} did not finish within {IMPORT_SECONDS} s", {"limit": "time"}
    )


def judge_import(modules: Sequence[str], status: int, stdout: str, stderr: str) -> ImportOutcome:
    """The outcome of a finished import, by its exit status (negative: the signal that killed it) and its output."""
    names = ", ".join(modules)
    evidence: dict[str, Any] = {"stderr": stderr[-4000:], "status": status}
    if status == 0:
        if imported := _printed(_MARK, stdout):
            return ImportOutcome(Verdict.PASSED, names, imported)
        return ImportOutcome(Verdict.FAILED, f"import of {names} ended the process", evidence)
    if status < 0:
        return ImportOutcome(Verdict.FAILED, f"import of {names} crashed with {_signal_name(-status)}", evidence)
    if raised := _printed(_RAISED, stdout):
        failure = RaisedImport.from_json(raised)
        return ImportOutcome(Verdict.FAILED, failure.sentence(), evidence | {"hints": failure.hints(modules)})
    lines = stderr.strip().splitlines()
    return ImportOutcome(Verdict.FAILED, f"import of {names} failed: {lines[-1] if lines else 'no message'}", evidence)


def _printed(mark: str, stdout: str) -> dict[str, Any]:
    """The data of the last line with this prefix, or an empty dictionary."""
    found = [line.removeprefix(mark) for line in stdout.splitlines() if line.startswith(mark)]
    data: dict[str, Any] = json.loads(found[-1]) if found else {}
    return data


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the program; raises subprocess.TimeoutExpired, or Interrupted, after killing it and all its children.

    LD_LIBRARY_PATH, LD_PRELOAD and other loader variables of the user's shell are not passed on: a wheel that needs
    them does not import for anybody else.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            out, err = _outcome(process)
        except BaseException:
            # Kill the whole group: children hold the same pipes, and `with` waits until the pipes are closed.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _outcome(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Output and error output. The process has its own session, so Ctrl-C does not reach it: check for it here."""
    end = time.monotonic() + IMPORT_SECONDS
    while True:
        raise_if_interrupted()
        left = end - time.monotonic()
        try:
            return process.communicate(timeout=max(0, min(left, 1)))
        except subprocess.TimeoutExpired:
            if left <= 1:
                raise


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
