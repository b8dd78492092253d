"""The import check: the wheel installed in a clean environment of the cell, its modules imported in a fresh process."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.proofs.proof import Verdict

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
    argv = [str(interpreter), "-I", "-X", "faulthandler", "-c", _PROGRAM, *modules]
    names = ", ".join(modules)
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=IMPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return ImportOutcome(Verdict.FAILED, f"import of {names} did not end in {IMPORT_SECONDS} s", {})
    evidence: dict[str, Any] = {"stderr": answer.stderr[-4000:], "status": answer.returncode}
    if answer.returncode == 0:
        told = [line.removeprefix(_MARK) for line in answer.stdout.splitlines() if line.startswith(_MARK)]
        if told:
            return ImportOutcome(Verdict.PASSED, names, json.loads(told[-1]))
        return ImportOutcome(Verdict.FAILED, f"import of {names} ended the process before it was done", evidence)
    if answer.returncode < 0:
        name = _signal_name(-answer.returncode)
        return ImportOutcome(Verdict.FAILED, f"import of {names} crashed with {name}", evidence)
    lines = answer.stderr.strip().splitlines()
    return ImportOutcome(Verdict.FAILED, f"import of {names} failed: {lines[-1] if lines else 'no message'}", evidence)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
