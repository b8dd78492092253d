"""The check "import-order": torch, the extension and its companions, imported in every order, each in its own process.

Each order ends with a call of one op. An order that begins with torch is forked by the launcher, which has imported
torch and nothing else; if it fails, it runs again in a new Python, which decides. Any other order is a new Python,
because conflicts between libraries show only if nothing else was imported before. An order that would do the same as an
earlier one (`imports.order.repeats`) does not run, unless an order fails. An order that crashes runs a second time with
`install_crash_handlers` for its native stack; the first run has no handlers, as in a user's process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from builder.gate.imports.launcher import Launcher
from builder.gate.imports.order import (
    ALL,
    CALLED,
    LOADED,
    STEP,
    STOPPED,
    Run,
    allowed_order,
    needs_first,
    only_after,
    orders_of,
    repeats,
    version_of,
)
from builder.gate.imports.registration import registered_twice
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.system import rlimits
from builder.gate.system.crash import crash_frame, describe_exit, fatal_signal, native_stack
from builder.gate.system.exit_status import exception_line

#: Time limit of one order as a multiple of the spec's: it imports torch from disk, several in parallel.
_TIME_FACTOR = 3.0
#: Seconds in which a killed process disappears.
_KILL_SECONDS = 30.0
_MAX_OUTPUT = 4000  # characters of output in the evidence

#: Run with `-c`. It imports the gate after the last module, because the gate imports torch.
_PROGRAM = f"""\
import importlib, json, os, sys
root, names, mode = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
if mode == "watch":
    sys.path.insert(0, root)
    from builder.gate.system.crash import install_crash_handlers
    sys.path.remove(root)
    install_crash_handlers()
def libraries():
    with open("/proc/self/maps") as file:
        return {{line.split()[-1] for line in file if ".so" in line and "/lib-dynload/" not in line}}
def imported(name):
    return name in sys.modules and not getattr(getattr(sys.modules[name], "__spec__", None), "_initializing", False)
before, clean = libraries(), True
for name in names:
    if name == "torch" and clean and mode == "stop" and not imported(name):
        os.write(1, b"\\n{STOPPED}\\n")
        os._exit(0)
    os.write(2, ("{STEP}import " + name + "\\n").encode())
    importlib.import_module(name)
    new = libraries()
    found = name == "torch" or not new <= before
    before, clean = before | new, clean and not found
    os.write(1, ("\\n{LOADED}" + json.dumps([list(filter(imported, names)), found]) + "\\n").encode())
sys.path.insert(0, root)
from builder.gate.checks.calls import call_first
os.write(2, b"{STEP}call\\n")
called = call_first(root, lambda op: os.write(2, ("{STEP}call " + op + "\\n").encode()))
os.write(1, ("\\n{CALLED}" + called + "\\n").encode())
os._exit(0)
"""


def import_orders(spec: Spec, root: Path, launcher: Launcher | None = None) -> Iterator[Outcome]:
    """Yield the outcome of all orders, and "not run" for each companion that is not installed.

    `root` is the folder of the packed gate, with `builder/` and cases.py. Without a launcher every process is a new
    Python.
    """
    present: list[str] = []
    for companion in spec.companions:
        module = _module_of(companion)
        if module is None:
            yield Outcome(
                "import-order",
                "",
                companion,
                NOT_RUN,
                f"{companion} is not installed, so no order with this package can be tested",
            )
        else:
            present.append(module)
    names = tuple(dict.fromkeys(["torch", *spec.needs_first, *spec.imports, *present]))
    orders = list(dict.fromkeys(allowed_order(order, spec) for order in orders_of(names)))
    began = time.monotonic()
    runs, repeated = _Runs(root, spec, launcher, orders).run_all()
    yield _judged(spec, root, names, runs, time.monotonic() - began, repeated)


class _Runs:
    """The runs of the orders: those that begin with torch in one thread, the others in `jobs` threads."""

    def __init__(self, root: Path, spec: Spec, launcher: Launcher | None, orders: Sequence[tuple[str, ...]]) -> None:
        self._root, self._spec, self._launcher = root, spec, launcher
        self._orders = orders
        firsts: dict[str, tuple[str, ...]] = {}
        for order in sorted(orders, key=lambda order: order[-1] != "torch"):
            firsts.setdefault(order[0], order)
        self._with_torch = [order for order in orders if order[0] == "torch"]
        #: In each of these another module is the first import of a process. They always run, but all except one may end
        #: before torch if no module has loaded a library until then.
        self._first = [order for order in orders if order in firsts.values() and order[0] != "torch"]
        self._may_stop = set(self._first[1:])
        self._others = [order for order in orders if order not in {*self._first, *self._with_torch}]
        self._runs: dict[tuple[str, ...], Run] = {}
        self._lock = threading.Lock()

    def run_all(self) -> tuple[list[Run], dict[str, str]]:
        """Return the complete runs, and for each order that repeats one of them that other order."""
        jobs = max(1, self._spec.jobs)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._work, [[self._with_torch, self._first], *[[self._first]] * (jobs - 1)]))
            list(pool.map(self._work, [[self._others]] * jobs))
            same = {order: repeats(order, self._known()) for order in self._orders if not self._complete(order)}
            bad = not all(run.good for run in self._known())
            self._may_stop.clear()
            self._launcher = None
            again = [order for order in same if bad or not same[order]]
            self._runs.update(zip(again, pool.map(self._run, again)))
        runs = [self._runs[order] for order in self._orders if self._complete(order)]
        return runs, {", ".join(order): ", ".join(same[order]) for order in self._orders if not self._complete(order)}

    def _known(self) -> list[Run]:
        return list(self._runs.values())

    def _complete(self, order: tuple[str, ...]) -> bool:
        return order in self._runs and not self._runs[order].stopped

    def _work(self, lists: Sequence[list[tuple[str, ...]]]) -> None:
        """Run the orders of these lists, which other threads empty too, until none is left."""
        while True:
            with self._lock:
                waiting = next(filter(None, lists), None)
                if waiting is None:
                    return
                order = waiting.pop(0)
                if waiting is self._others and repeats(order, self._known()):
                    continue
            run = self._run(order)
            with self._lock:
                self._runs[order] = run

    def _run(self, order: tuple[str, ...]) -> Run:
        mode = "stop" if order in self._may_stop else "plain"
        if self._launcher and order[0] == "torch":
            try:
                run = _run(self._root, order, self._spec, mode, self._launcher)
                if run.good:
                    return run
            except OSError:  # the launcher has ended, or does not answer
                self._launcher = None
        return _run(self._root, order, self._spec, mode)


def _judged(
    spec: Spec,
    root: Path,
    names: Sequence[str],
    runs: Sequence[Run],
    seconds: float,
    repeated: Mapping[str, str] | None = None,
) -> Outcome:
    bad, good = [run for run in runs if not run.good], [run for run in runs if run.good]
    evidence: dict[str, Any] = {
        "modules": list(names),
        "orders": {", ".join(run.order): "works" if run.good else _ended(run, spec) for run in runs},
        "all orders": len(names) <= ALL and not spec.needs_first,
        "called": sorted({run.called for run in good}),
        **({"same imports as": repeated} if repeated else {}),
    }
    if not bad:
        figure = f"{len(runs)} order{'s' * (len(runs) != 1)}"
        details = []
        if spec.needs_first:
            figure += f" in which {', '.join(spec.needs_first)} precedes the extension (`needs_first`)"
        elif len(names) > ALL:
            details.append(f"each pair of {len(names)} modules in both directions")
        if repeated:
            details.append(f"{len(repeated)} more would repeat the same imports")
        if details:
            figure += f" ({'; '.join(details)})"
        if not any(run.called for run in good):
            reason = f"the imports succeed in {figure}; no case could be called after them"
            return Outcome("import-order", "", "", NOT_RUN, reason, seconds, evidence)
        if len({run.called for run in good}) > 1:
            return Outcome("import-order", "", "", FAILED, _different_ops(good), seconds, evidence)
        return Outcome("import-order", "", "", PASSED, figure, seconds, evidence)
    failures = []
    for kind in dict.fromkeys(run.kind for run in bad):
        alike = [run for run in bad if run.kind == kind]
        run = min(alike, key=lambda one: len(one.so_far))  # the shortest order that shows it
        description, stack = _rerun_with_stacks(spec, root, run)
        cure = only_after(run, alike, runs) or needs_first(run, alike, runs, spec)
        failures.append(f"{', then '.join(run.so_far)}: {run.step} {description}{cure}")
        evidence.setdefault("stacks", {})[", ".join(run.order)] = stack
    works = f"; the order {', '.join(good[0].order)} works" if good else "; no order works"
    return Outcome("import-order", "", "", FAILED, "; ".join(failures) + works, seconds, evidence)


def _different_ops(runs: Sequence[Run]) -> str:
    """Return the failure if every order imports, but the first op that returns differs between orders."""
    usual = max({run.called for run in runs if run.called}, key=lambda op: sum(run.called == op for run in runs))
    well = next(run for run in runs if run.called == usual)
    other = next(run for run in runs if run.called != usual)
    first = f"{other.called} is the first op that works" if other.called else "every op raises an exception"
    return (
        "the import order changes which ops work. The check calls one op after another until an op works. "
        f"After {', '.join(other.order)}: {first}. After {', '.join(well.order)}: {usual} is the first op that works. "
        "To see the exception, start a Python for each import order, and call in each the first case of "
        f"{' and of '.join(filter(None, (usual, other.called)))}"
    )


def _rerun_with_stacks(spec: Spec, root: Path, run: Run) -> tuple[str, dict[str, Any]]:
    """Return how the run ended as text, and stacks from a second run with crash handlers if the first crashed."""
    shown = run
    if fatal_signal(run.status, run.stderr):
        again = _run(root, run.order, spec, "watch")
        if again.kind == run.kind:
            shown = again
    frame = crash_frame(shown.stderr)
    return _ended(shown, spec), {
        "stderr": shown.stderr[-_MAX_OUTPUT:],
        "native": [str(one) for one in native_stack(shown.stderr)[:30]],
        "library": frame.library if frame else "",
        "versions": {name: version_of(name) for name in run.order},
        **({} if run.in_time else {"limit": "time"}),
    }


def _ended(run: Run, spec: Spec) -> str:
    if not run.in_time:
        return f"does not end within {_TIME_FACTOR * spec.seconds:g} s"
    if fatal_signal(run.status, run.stderr):
        return describe_exit(run.status, run.stderr)
    raised = exception_line([line for line in run.stderr.strip().splitlines() if not line.startswith(STEP)])
    if raised and run.status == 1 << 8:
        return f"raises {raised}{registered_twice(raised)}"
    return describe_exit(run.status, run.stderr)


def _run(root: Path, order: Sequence[str], spec: Spec, mode: str = "plain", launcher: Launcher | None = None) -> Run:
    """Run one order in a new Python, or in a fork of the launcher; kill its process group at the time limit.

    `mode` is "watch" to install crash handlers, or "stop" to end before torch if no library was loaded.
    """
    arguments = [str(root), json.dumps(list(order)), mode]
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if launcher:
            pid, wait = launcher.start(_PROGRAM, arguments, tempfile.gettempdir(), (out, err)), launcher.wait
        else:
            process = subprocess.Popen(
                [sys.executable, "-I", "-X", "faulthandler", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=tempfile.gettempdir(),
            )
            pid, wait = process.pid, partial(_wait, process)
        in_time, status = True, None
        try:
            status = wait(_TIME_FACTOR * spec.seconds)
        except TimeoutError:
            in_time = False
            os.kill(pid, signal.SIGABRT)  # faulthandler writes the stack
            time.sleep(0.5)
        finally:
            rlimits.kill_group(pid)
            if status is None:
                status = wait(_KILL_SECONDS)
        return Run(tuple(order), status, _tail(out), _tail(err), time.monotonic() - began, in_time)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Return the wait status of a process. Raises TimeoutError after so many seconds."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    return -code if code < 0 else code << 8


def _tail(file: Any) -> str:  # noqa: ANN401
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - (1 << 16)))
    return str(file.read().decode("utf-8", "replace"))


def _module_of(distribution: str) -> str | None:
    """Return the module name of a distribution, or None if it is not installed."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return distribution if distribution.isidentifier() and find_spec(distribution) else None
    top = (found.read_text("top_level.txt") or "").split()
    roots = [path.parts[0] for path in found.files or () if len(path.parts) > 1 and path.name == "__init__.py"]
    name = re.sub(r"[-.]+", "_", distribution)
    names = [one for one in (*top, *roots) if one.isidentifier() and not one.startswith("_")]
    return name if name in names or not names else names[0]
