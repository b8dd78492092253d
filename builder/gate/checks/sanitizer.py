"""The check "gpu-sanitizer": a case in its own process under compute-sanitizer's memcheck."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import torch

from builder.gate.amounts import counted
from builder.gate.case import Case
from builder.gate.checks.gpu import execute
from builder.gate.context import Context
from builder.gate.imports.cases_file import load_cases
from builder.gate.outcome import Outcome, Spec
from builder.gate.system import nvidia

#: Time limit as a multiple of the limit in the spec; below the `time_factor` of the check, which kills the task.
_TIME_FACTOR = 3.0

#: The line that the program prints after the last dtype.
_DONE = "buildfarm-case-done"

_PROGRAM = """\
import sys
root, number = sys.argv[1:]
sys.path.insert(0, root)
from builder.gate.checks.sanitizer import run_case
run_case(root, int(number))
"""


def sanitizer(context: Context, case: Case) -> list[Outcome]:
    """The check "gpu-sanitizer"."""
    program = nvidia.find_sanitizer()
    if program is None:
        reason = "compute-sanitizer is not installed (it is part of the CUDA toolkit)"
        return context.not_run(case, reason)
    root = Path(__file__).resolve().parents[3]
    number = next(i for i, one in enumerate(context.cases) if one is case)
    command = nvidia.sanitizer_command(program, [sys.executable, "-I", "-c", _PROGRAM, str(root), str(number)])
    # torch's caching allocator splits large blocks. Without it every tensor is an allocation that memcheck knows.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    seconds = context.spec.seconds * _TIME_FACTOR
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"the case does not end within {seconds:g} s under compute-sanitizer"
        return context.not_run(case, reason)
    return _outcome(context, case, run.returncode, run.stdout + run.stderr)


def _outcome(context: Context, case: Case, status: int, text: str) -> list[Outcome]:
    report = nvidia.read_sanitizer(text)
    if report.errors and (report.findings or not report.own_error):
        first = report.findings[0] if report.findings else "see the evidence"
        reason = f"compute-sanitizer finds {counted(report.errors, 'error')}: {first}"
        return context.failed(case, reason, report=text[-20000:])
    if report.errors is None or report.own_error:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), f"status {status}")
        reason = f"compute-sanitizer does not work on this machine: {report.own_error or last}"
        return context.not_run(case, reason, report=text[-4000:])
    if status == 0 and _DONE not in text.splitlines():
        # Seen with compute-sanitizer 2024.1: it reports 0 errors of a program that it has not started.
        reason = "compute-sanitizer does not work on this machine: it ends before the case does, and reports 0 errors"
        return context.not_run(case, reason, report=text[-4000:])
    if status:
        last = next((line for line in reversed(text.splitlines()) if line.strip() and not line.startswith("=")), "")
        reason = f"exits with status {status} under compute-sanitizer: {last}"
        return context.failed(case, reason, report=text[-20000:])
    return context.passed(case, "0 errors")


def run_case(root: str, number: int) -> None:
    """Run one case on CUDA in each of its dtypes, without comparing results. Runs under the sanitizer.

    Raises:
        SystemExit: cases.py cannot be loaded.

    """
    spec = Spec.read(Path(root))
    for module in dict.fromkeys([*spec.needs_first, *spec.imports]):
        importlib.import_module(module)
    file = load_cases(Path(root))
    if file.problem:
        raise SystemExit(file.problem)
    cases = file.cases
    context = Context(spec, cases, device="cuda")
    for dtype in cases[number].dtypes:
        execute(context, cases[number], context.arguments(cases[number], dtype))
        torch.cuda.synchronize()
    print(f"\n{_DONE}", flush=True)  # noqa: T201
