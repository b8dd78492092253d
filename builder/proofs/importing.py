"""The import check: the wheel installed in a clean environment of the cell, its modules imported in a fresh process."""

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

from builder.process import stop_if_ending
from builder.proof import Verdict

#: A healthy import of torch takes seconds; beyond this the module hangs.
IMPORT_SECONDS = 300

#: Begins the line that the program answers with: a module may print what it likes, before it and after.
_MARK = "buildfarm imported "

_PROGRAM = """
import faulthandler, importlib, json, platform, sys
faulthandler.enable()
for name in sys.argv[1:]:
    importlib.import_module(name)
import torch
print("\\n{mark}" + json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
    "glibc": platform.libc_ver()[1], "gpus": torch.cuda.device_count(),
}))
""".replace("{mark}", _MARK)


@dataclass(frozen=True)
class ImportOutcome:
    """How the import ended: a verdict, a sentence, and where it ran."""

    verdict: Verdict
    reason: str
    evidence: dict[str, Any]


def try_import(interpreter: Path, modules: Sequence[str]) -> ImportOutcome:
    """Import the modules, in order, in a fresh process of the cell's Python; this process survives whatever happens."""
    try:
        answer = _run([str(interpreter), *import_arguments(modules)])
    except subprocess.TimeoutExpired:
        return hanging_import(modules)
    return judge_import(modules, answer.returncode, answer.stdout, answer.stderr)


def import_arguments(modules: Sequence[str]) -> list[str]:
    """What a cell's Python is called with to import them."""
    return ["-I", "-X", "faulthandler", "-c", _PROGRAM, *modules]


def hanging_import(modules: Sequence[str]) -> ImportOutcome:
    """The outcome of an import that was stopped after IMPORT_SECONDS."""
    return ImportOutcome(Verdict.FAILED, f"import of {', '.join(modules)} did not end in {IMPORT_SECONDS} s", {})


def judge_import(modules: Sequence[str], status: int, stdout: str, stderr: str) -> ImportOutcome:
    """The outcome of one that ended: its exit status (negative: the signal that ended it) and what it printed."""
    names = ", ".join(modules)
    evidence: dict[str, Any] = {"stderr": stderr[-4000:], "status": status}
    if status == 0:
        told = [line.removeprefix(_MARK) for line in stdout.splitlines() if line.startswith(_MARK)]
        if told:
            return ImportOutcome(Verdict.PASSED, names, json.loads(told[-1]))
        return ImportOutcome(Verdict.FAILED, f"import of {names} ended the process before it was done", evidence)
    if status < 0:
        return ImportOutcome(Verdict.FAILED, f"import of {names} crashed with {_signal_name(-status)}", evidence)
    lines = stderr.strip().splitlines()
    return ImportOutcome(Verdict.FAILED, f"import of {names} failed: {lines[-1] if lines else 'no message'}", evidence)


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The program's end; raises subprocess.TimeoutExpired, once it and all that it started were ended.

    Raises Interrupted, with the same care, once the farm is ending.

    The loader's settings of the person's shell (LD_LIBRARY_PATH, LD_PRELOAD) stay out: a wheel that needs them does
    not import for anybody else.
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
            # Not the process alone: children of it hold the same pipes, and their end is waited for.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _outcome(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it said; its session is its own, so a Ctrl-C reaches the farm alone and is looked for here."""
    end = time.monotonic() + IMPORT_SECONDS
    while True:
        stop_if_ending()
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
