"""The forked child: limits itself, runs one check, writes the outcomes to its journal, and exits without clean-up."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from builder.gate.amounts import size_text
from builder.gate.case import Case
from builder.gate.context import CaseError, Context, sentence
from builder.gate.imports.cases_fault import is_mistake, line_of
from builder.gate.imports.registration import no_kernel
from builder.gate.outcome import MISTAKE_IN_CASES, PASSED, Outcome
from builder.gate.processes.journal import JOURNAL, KEY_BYTES, LOG, STACK, Journal
from builder.gate.system import rlimits
from builder.gate.system.nvidia import hide_gpus
from builder.gate.system.process_end import NO_RESULTS, install_crash_handlers
from builder.gate.system.process_tree import children, limit_file_size
from builder.gate.torch_limits import traceback_text

#: The folder of the packed gate, with cases.py.
_ROOT = Path(__file__).parents[3]
_COPIES_SECONDS = 1.0
#: The largest file that a task may write.
FILE_BYTES = 1 << 30
_NO_MEMORY = re.compile(r"can't allocate memory|bad_alloc|Cannot allocate memory", re.IGNORECASE)
_REQUESTED = re.compile(r"tried to allocate (\d+) bytes")


def run_child(loaded: Context, command: Mapping[str, Any], key: int) -> int:
    """Run a job in this child; return its exit status. `key` is a descriptor with the key of its journal."""
    limit_file_size(FILE_BYTES)
    secret = os.read(key, KEY_BYTES)
    os.close(key)
    try:
        return run_job(loaded, command, secret)
    except OSError as error:  # not of the op, whose exceptions are outcomes
        with contextlib.suppress(OSError):
            os.write(2, f"{error}\n".encode())
        return NO_RESULTS


def run_job(loaded: Context, command: Mapping[str, Any], key: bytes) -> int:
    """Run the check within its limits; return the exit status. `command` is that of `jobs.Job.start`."""
    folder = Path(command["task_dir"])
    # This file stays open until the process ends: a crash handler cannot open it.
    stack = open(folder / STACK, "wb", buffering=0)  # noqa: SIM115, PTH123
    install_crash_handlers(stack.fileno())
    faulthandler.register(signal.SIGUSR1, stack, all_threads=True, chain=False)
    journal = Journal(str(folder / JOURNAL), key)
    gc.disable()  # a collection would touch, and so copy, every inherited page
    torch.set_num_threads(1)
    if command["device"] == "cpu":
        hide_gpus()
    else:
        # By default cuDNN rounds float32 to TF32 (torch's "CUDA semantics"), also in the reference of a case. Images
        # may allow cuBLAS the same, by TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.
        torch._C._set_cudnn_allow_tf32(False)  # torch.backends raises after an import of torch.testing's internals
        torch._C._set_cublas_allow_tf32(False)
    job = replace(loaded, check=command["check"], device=command["device"], step=journal.step, folder=folder)
    began, random_numbers = time.perf_counter(), torch.get_rng_state()
    if not command["cases"]:
        _run_case(job, command, None, journal)
    for index, data in zip(command["cases"], command["data"]):
        torch.set_rng_state(random_numbers)
        _run_case(replace(job, data=Path(data)), command, loaded.cases[index], journal)
        journal.add(done=index)
        if time.perf_counter() - began > command["seconds"]:
            break
    # If the op closed standard output, a flush at exit would fail and look like an error of the job.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    journal.add(end=True)
    return 0


def _run_case(context: Context, command: Mapping[str, Any], case: Case | None, journal: Journal) -> None:
    """Run the check for this case, or for the extension, and write what it returns to the journal.

    An exception of the check becomes an outcome.
    """
    rlimits.limit_added_memory(command["memory"])
    began = time.perf_counter()
    module, _, name = command["function"].partition(":")
    result: list[Outcome] | dict[str, Any]  # a dictionary has facts
    try:
        function = getattr(importlib.import_module(f"builder.gate.{module}"), name)
        result = function(context) if case is None else function(context, case)
    except BaseException as error:  # noqa: BLE001 (an op may raise anything, SystemExit too)
        rlimits.remove_memory_limit()
        result = _outcome_of_exception(context, command, case, error, journal.last_step)
    if isinstance(result, list) and not _output_is_log(context.folder):
        reason = "closes or replaces standard output or standard error: the calling program loses its output"
        result = [*(one for one in result if one.verdict != PASSED), *context.failed(case, reason)]
    # If the op has forked, give the copy of this process time to write to the journal.
    own, deadline = Path("/proc/self/cmdline").read_bytes(), time.monotonic() + _COPIES_SECONDS
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError):
            while Path(f"/proc/{pid}/cmdline").read_bytes() == own and time.monotonic() < deadline:
                time.sleep(0.01)
    if isinstance(result, dict):
        journal.add(facts=result)
        return
    seconds = (time.perf_counter() - began) / max(len(result), 1)
    for outcome in result:
        journal.add(outcome={**vars(outcome), "seconds": outcome.seconds or round(seconds, 3)})


def _output_is_log(folder: Path) -> bool:
    try:
        log = (folder / LOG).stat()
        return all(os.path.samestat(os.fstat(fd), log) for fd in (1, 2)) and not sys.stdout.closed
    except OSError:
        return False


def _outcome_of_exception(
    context: Context, command: Mapping[str, Any], case: Case | None, error: BaseException, step: str
) -> list[Outcome]:
    text, memory = str(error), command["memory"]
    if isinstance(error, CaseError):
        # The judge has not loaded the extension, so an exception there comes from cases.py alone.
        mistake = command["function"].startswith("processes.") or is_mistake(error.__cause__, _ROOT)
        return context.failed(case, text + line_of(error.__cause__, _ROOT), **(MISTAKE_IN_CASES if mistake else {}))
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        requested = _REQUESTED.search(text)
        reason = f"allocates {size_text(int(requested[1])) if requested else 'too much memory'}"
        reason += f"; the limit for a case is {size_text(memory)}" if memory else ""
    else:
        reason = (case and no_kernel(case.op, text)) or f"raises {sentence(error)}"
    trace = traceback_text(error)[-6000:]
    return context.failed(case, reason + (f" (step: {step})" if step else ""), traceback=trace)
