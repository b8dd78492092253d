"""The forked child: puts itself into its bounds, runs one check, writes what it found, ends without clean-up."""

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
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from builder.gate import crash, limits
from builder.gate.case import Case
from builder.gate.context import CaseError, Context, sentence
from builder.gate.ends import amount
from builder.gate.journal import Journal
from builder.gate.outcome import FAILED, PASSED, Outcome, Spec

#: Files of a task in its room.
JOURNAL, LOG, STACK = "journal", "log", "stack"

_COPIES_SECONDS = 1.0
_NO_MEMORY = re.compile(r"can't allocate memory|bad_alloc|CUDA out of memory|Cannot allocate memory", re.IGNORECASE)
_ASKED = re.compile(r"tried to allocate (\d+) bytes")


@dataclass(frozen=True)
class Loaded:
    """What every child of a nursery inherits."""

    spec: Spec
    cases: Sequence[Case]
    ops: Sequence[str]
    guarded: bool


@dataclass(frozen=True)
class Errand:
    """What one child is to do.

    Attributes:
        check: a key of CHECKS, or "" for a function that answers facts.
        function: `module:function` in this package.
        case: the number of the case, None for the whole extension.
        device: "cpu" or "cuda".
        memory: bytes of address space it may add; 0 for no limit of its own.
        room: its folder, which exists.

    """

    check: str
    function: str
    case: int | None
    device: str
    memory: int
    room: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Errand:
        """Read a command; keys beside the fields are the nursery's own."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})


def live(loaded: Loaded, errand: Errand, parent: int) -> None:
    """The whole life of a child. Does not return."""
    status = 1
    try:
        os.setsid()
        limits.die_with_parent(parent)
        _own_output(errand.room)
        status = work(loaded, errand)
    except BaseException:  # noqa: BLE001 (nothing may return into the nursery's loop)
        traceback.print_exc()
    finally:
        os._exit(status)


def _own_output(room: str) -> None:
    """Standard input from nowhere, standard output and error into the room."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(str(Path(room, LOG)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)


def work(loaded: Loaded, errand: Errand) -> int:
    """Run the check inside its bounds; the exit status. Whatever the check raises becomes an outcome."""
    # The stack's file stays open until the process ends: it is written when nothing else works any more.
    stack = open(Path(errand.room, STACK), "wb", buffering=0)  # noqa: SIM115, PTH123
    crash.watch_crashes(stack.fileno())
    faulthandler.register(signal.SIGUSR1, stack, all_threads=True, chain=False)
    journal = Journal(str(Path(errand.room, JOURNAL)))
    gc.disable()  # a collection would touch, and so copy, every page inherited
    torch.set_num_threads(1)
    limits.add_at_most(errand.memory)
    module, _, name = errand.function.partition(":")
    context = Context(loaded.spec, loaded.cases, errand.device, loaded.guarded, loaded.ops, journal.doing)
    case = None if errand.case is None else loaded.cases[errand.case]
    began = time.perf_counter()
    try:
        function = getattr(importlib.import_module(f"builder.gate.{module}"), name)
        found = function(context) if case is None else function(context, case)
    except BaseException as error:  # noqa: BLE001 (an op may raise anything, SystemExit too)
        limits.lift()
        found = [_raised(errand, case, error, journal.last)]
    if isinstance(found, list) and not _still_own_output(errand.room):
        reason = "closes or replaces standard output or error: the program that calls it falls silent"
        found = [*(one for one in found if one.verdict != PASSED), _failed(errand, case, reason)]
    _await_copies()
    # Without this, an end by exit() or by a full pipe would count what Python still holds back as a fault.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    if isinstance(found, dict):
        journal.facts(found)
    else:
        seconds = (time.perf_counter() - began) / max(len(found), 1)
        for outcome in found:
            journal.outcome(replace(outcome, seconds=outcome.seconds or round(seconds, 3)))
    journal.end()
    return 0


def _await_copies() -> None:
    """An op may have forked, and its copy be on its way back from it: give it time to leave word in the journal."""
    own = Path("/proc/self/cmdline").read_bytes()
    deadline = time.monotonic() + _COPIES_SECONDS
    for pid in limits.children():
        with contextlib.suppress(OSError):
            while Path(f"/proc/{pid}/cmdline").read_bytes() == own and time.monotonic() < deadline:
                time.sleep(0.01)


def _still_own_output(room: str) -> bool:
    try:
        log = Path(room, LOG).stat()
        return all(os.path.samestat(os.fstat(fd), log) for fd in (1, 2)) and not sys.stdout.closed
    except OSError:
        return False


def _raised(errand: Errand, case: Case | None, error: BaseException, doing: str) -> Outcome:
    text = str(error)
    if isinstance(error, CaseError):
        return _failed(errand, case, text)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        asked = _ASKED.search(text)
        reason = f"asks for {amount(int(asked.group(1)))}" if asked else "asks for more memory than it is given"
        reason += f"; a case may take {amount(errand.memory)}" if errand.memory else ""
    else:
        reason = f"raises {sentence(error)}"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-6000:]
    return _failed(errand, case, reason + (f", at: {doing}" if doing else ""), traceback=trace)


def _failed(errand: Errand, case: Case | None, reason: str, **evidence: Any) -> Outcome:  # noqa: ANN401
    return Outcome(errand.check, case.op if case else "", case.name if case else "", FAILED, reason, evidence=evidence)
