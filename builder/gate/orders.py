"""The check "import-order": torch, the extension and its companions, imported in every order in fresh processes.

Each order ends with one call of an op. Every process is executed, not forked, and knows nothing but the order: what a
library does to another one shows only where nothing else was imported before. An order that dies is run once more with
`watch_crashes` for its native stack, so that the first run stays as a user's would be.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from builder.gate import limits
from builder.gate.crash import end_of, fatal_signal, guilty, native_stack
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec

#: All orders up to this many modules; beyond it their number is kept near the square of the modules'.
_ALL = 3
#: The time limit of one order as a multiple of the spec's: each imports torch from the disk, and several do at once.
_PATIENCE = 3.0
_KEPT = 4000
_STEP = "buildfarm-step "
_CALLED = "buildfarm-called "

#: Run with `-c`: nothing of the gate is imported before the last import, as that would import torch.
_PROGRAM = f"""\
import importlib, json, os, sys
root, names, watch = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "watch"
if watch:
    sys.path.insert(0, root)
    from builder.gate.crash import watch_crashes
    sys.path.remove(root)
    watch_crashes()
for name in names:
    os.write(2, ("{_STEP}import " + name + "\\n").encode())
    importlib.import_module(name)
sys.path.insert(0, root)
from builder.gate.probe import call_first
os.write(2, b"{_STEP}call\\n")
called = call_first(root, lambda op: os.write(2, ("{_STEP}call " + op + "\\n").encode()))
os.write(1, ("\\n{_CALLED}" + called + "\\n").encode())
os._exit(0)
"""


@dataclass(frozen=True)
class Run:
    """How one order ended."""

    order: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float
    in_time: bool

    @property
    def good(self) -> bool:
        """Every module was imported and, where there is one that can, an op called."""
        return self.status == 0 and self.in_time

    @property
    def step(self) -> str:
        """What it did last: "import torch", "call ns::op"."""
        steps = [line[len(_STEP) :] for line in self.stderr.splitlines() if line.startswith(_STEP)]
        return steps[-1] if steps else "the start of Python"

    @property
    def called(self) -> str:
        """The op that was called at the end and answered, or nothing; what the imports print does not count."""
        said = [line[len(_CALLED) :] for line in self.stdout.splitlines() if line.startswith(_CALLED)]
        return said[-1].strip() if said else ""

    @property
    def kind(self) -> tuple[str, int]:
        """What tells one fault from another: the last step and the signal."""
        return self.step, fatal_signal(self.status, self.stderr)


def import_orders(spec: Spec, root: Path) -> Iterator[Outcome]:
    """The outcomes of every order; companions that are not installed here are "not run".

    `root` is the folder the gate stands in: `builder/`, cases.py.
    """
    present: list[str] = []
    for companion in spec.companions:
        module = _module_of(companion)
        if module is None:
            yield Outcome("import-order", "", companion, NOT_RUN, f"{companion} is not installed here")
        else:
            present.append(module)
    names = tuple(dict.fromkeys(["torch", *spec.imports, *present]))
    orders = list(orders_of(names))
    began = time.monotonic()
    with ThreadPoolExecutor(max(1, spec.jobs)) as pool:
        runs = list(pool.map(lambda order: _run(root, order, spec), orders))
    yield _judged(spec, root, names, runs, time.monotonic() - began)


def orders_of(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every order of up to three modules; of more, orders in which each pair stands both ways round, side by side.

    For n > 3 these are, for each pair (a, b): a, b, then the rest; and for each module: the rest, then it. About n * n.
    """
    if len(names) <= _ALL:
        yield from itertools.permutations(names)
        return
    for first, second in itertools.permutations(names, 2):
        yield first, second, *(name for name in names if name not in {first, second})
    for last in names:
        order = (*(name for name in names if name != last), last)
        if order[:2] != tuple(names[:2]):
            yield order


def _judged(spec: Spec, root: Path, names: Sequence[str], runs: Sequence[Run], seconds: float) -> Outcome:
    bad, good = [run for run in runs if not run.good], [run for run in runs if run.good]
    evidence: dict[str, Any] = {
        "modules": list(names),
        "orders": {", ".join(run.order): "works" if run.good else _ended(run, spec) for run in runs},
        "all orders": len(names) <= _ALL,
        "called": sorted({run.called for run in good}),
    }
    if not bad:
        figure = f"{len(runs)} orders" + ("" if len(names) <= _ALL else f", each pair of {len(names)} both ways")
        if not any(run.called for run in good):
            return Outcome(
                "import-order", "", "", NOT_RUN, f"{figure} import, but no case could be called", seconds, evidence
            )
        if len({run.called for run in good}) > 1:
            return Outcome("import-order", "", "", FAILED, _answers_differ(good), seconds, evidence)
        return Outcome("import-order", "", "", PASSED, figure, seconds, evidence)
    faults = []
    for kind in dict.fromkeys(run.kind for run in bad):
        alike = [run for run in bad if run.kind == kind]
        run = min(alike, key=lambda one: len(_so_far(one)))  # the least that brings it about
        told, stack = _looked_at_again(spec, root, run)
        faults.append(f"{', then '.join(_so_far(run))}: {run.step} {told}{_only_after(run, alike, runs)}")
        evidence.setdefault("stacks", {})[", ".join(run.order)] = stack
    works = f"; {', '.join(good[0].order)} works" if good else "; no order works"
    return Outcome("import-order", "", "", FAILED, "; ".join(faults) + works, seconds, evidence)


def _answers_differ(runs: Sequence[Run]) -> str:
    """Every order imports, but the first op to answer is not the same: the usual one raised in some order."""
    usual = max({run.called for run in runs if run.called}, key=lambda op: sum(run.called == op for run in runs))
    well = next(run for run in runs if run.called == usual)
    other = next(run for run in runs if run.called != usual)
    answers = f"{other.called} is the first op that answers" if other.called else "no op answers a call"
    return (
        f"{', then '.join(other.order)}: all import, but then {answers}, where after {', '.join(well.order)} "
        f"it is {usual}: call its first case in that order to see what is raised"
    )


def _looked_at_again(spec: Spec, root: Path, run: Run) -> tuple[str, dict[str, Any]]:
    """The end in words and the stacks, from a second run under `watch_crashes` if the first one crashed."""
    seen = run
    if fatal_signal(run.status, run.stderr):
        again = _run(root, run.order, spec, watch=True)
        if again.kind == run.kind:
            seen = again
    frame = guilty(seen.stderr)
    return _ended(seen, spec), {
        "stderr": seen.stderr[-_KEPT:],
        "native": [str(one) for one in native_stack(seen.stderr)[:30]],
        "library": frame.library if frame else "",
        "versions": {name: _version_of(name) for name in run.order},
    }


def _ended(run: Run, spec: Spec) -> str:
    if not run.in_time:
        return f"does not end within {_PATIENCE * spec.seconds:g} s"
    if fatal_signal(run.status, run.stderr):
        return end_of(run.status, run.stderr)
    lines = [line for line in run.stderr.strip().splitlines() if not line.startswith(_STEP)]
    return f"raises {lines[-1]}" if lines and run.status == 1 << 8 else end_of(run.status, run.stderr)


def _imported(run: Run) -> str:
    """The module whose import was the last step, or nothing."""
    name = run.step[len("import ") :] if run.step.startswith("import ") else ""
    return name if name in run.order else ""


def _so_far(run: Run) -> list[str]:
    """What had been imported when it ended, with versions: the guilty order."""
    name = _imported(run)
    order = run.order[: run.order.index(name) + 1] if name else run.order
    return [f"{one} {_version_of(one)}".strip() for one in order]


def _only_after(run: Run, alike: Sequence[Run], runs: Sequence[Run]) -> str:
    """Which module must come first for this fault: the one that all faulty orders have there and no good one has."""
    victim = _imported(run)
    if not victim:
        return ""
    before = [set(one.order[: one.order.index(victim)]) for one in alike]
    clean = [set(one.order[: one.order.index(victim)]) for one in runs if one.good and victim in one.order]
    suspects = set.intersection(*before) if before else set()
    if clean:
        suspects = {one for one in suspects if not any(one in others for others in clean)}
    named = ", ".join(f"{one} {_version_of(one)}".strip() for one in run.order if one in suspects)
    return f", only when {named} is imported before it: import {victim} first" if named and clean else ""


def _run(root: Path, order: Sequence[str], spec: Spec, *, watch: bool = False) -> Run:
    """One fresh Python; it and all it started are ended at the time limit."""
    arguments = [str(root), json.dumps(list(order)), "watch" if watch else "plain"]
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, "-I", "-X", "faulthandler", "-c", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            cwd=tempfile.gettempdir(),
        )
        try:
            code = process.wait(timeout=_PATIENCE * spec.seconds)
            in_time = True
        except subprocess.TimeoutExpired:
            in_time = False
            os.kill(process.pid, signal.SIGABRT)  # faulthandler writes where it is
            time.sleep(0.5)
        finally:
            limits.kill_group(process.pid)
            code = process.wait()
        status = -code if code < 0 else code << 8
        return Run(tuple(order), status, _tail(out), _tail(err), time.monotonic() - began, in_time)


def _tail(file: Any) -> str:  # noqa: ANN401
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - (1 << 16)))
    return str(file.read().decode("utf-8", "replace"))


def _module_of(distribution: str) -> str | None:
    """The module a distribution is imported as, or None if it is not installed."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return distribution if distribution.isidentifier() and find_spec(distribution) else None
    top = (found.read_text("top_level.txt") or "").split()
    roots = [path.parts[0] for path in found.files or () if len(path.parts) > 1 and path.name == "__init__.py"]
    name = re.sub(r"[-.]+", "_", distribution)
    names = [one for one in (*top, *roots) if one.isidentifier() and not one.startswith("_")]
    return name if name in names or not names else names[0]


def _version_of(module: str) -> str:
    """The version of the distribution a module is from, or nothing."""
    name = module.partition(".")[0]
    for candidate in (name, name.replace("_", "-")):
        try:
            return metadata.version(candidate)
        except metadata.PackageNotFoundError:
            continue
    return ""
