"""The check "import-order": torch, the extension and its companions, imported in every order in new processes.

Each order ends with a call of one op. Every process is started, not forked, because conflicts between libraries show
only if nothing else was imported before. An order that crashes runs a second time with `install_crash_handlers` for its
native stack; the first run has no handlers, as in a user's process.
"""

from __future__ import annotations

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
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from builder.gate.imports.order import (
    ALL,
    CALLED,
    STEP,
    Run,
    allowed_order,
    needs_first,
    only_after,
    orders_of,
    version_of,
)
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.system import rlimits
from builder.gate.system.crash import crash_frame, describe_exit, fatal_signal, native_stack
from builder.gate.system.exit_status import exception_line

#: Time limit of one order as a multiple of the spec's: it imports torch from disk, several in parallel.
_TIME_FACTOR = 3.0
_MAX_OUTPUT = 4000  # characters of output in the evidence

#: Run with `-c`. It imports the gate after the last module, because the gate imports torch.
_PROGRAM = f"""\
import importlib, json, os, sys
root, names, watch = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "watch"
if watch:
    sys.path.insert(0, root)
    from builder.gate.system.crash import install_crash_handlers
    sys.path.remove(root)
    install_crash_handlers()
for name in names:
    os.write(2, ("{STEP}import " + name + "\\n").encode())
    importlib.import_module(name)
sys.path.insert(0, root)
from builder.gate.checks.calls import call_first
os.write(2, b"{STEP}call\\n")
called = call_first(root, lambda op: os.write(2, ("{STEP}call " + op + "\\n").encode()))
os.write(1, ("\\n{CALLED}" + called + "\\n").encode())
os._exit(0)
"""


def import_orders(spec: Spec, root: Path) -> Iterator[Outcome]:
    """Yield the outcome of all orders, and "not run" for each companion that is not installed.

    `root` is the folder of the packed gate, with `builder/` and cases.py.
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
    with ThreadPoolExecutor(max(1, spec.jobs)) as pool:
        runs = list(pool.map(lambda order: _run(root, order, spec), orders))
    yield _judged(spec, root, names, runs, time.monotonic() - began)


def _judged(spec: Spec, root: Path, names: Sequence[str], runs: Sequence[Run], seconds: float) -> Outcome:
    bad, good = [run for run in runs if not run.good], [run for run in runs if run.good]
    evidence: dict[str, Any] = {
        "modules": list(names),
        "orders": {", ".join(run.order): "works" if run.good else _ended(run, spec) for run in runs},
        "all orders": len(names) <= ALL and not spec.needs_first,
        "called": sorted({run.called for run in good}),
    }
    if not bad:
        figure = f"{len(runs)} order{'s' * (len(runs) != 1)}"
        if spec.needs_first:
            figure += f" in which {', '.join(spec.needs_first)} precedes the extension (`needs_first`)"
        elif len(names) > ALL:
            figure += f" (each pair of {len(names)} modules in both directions)"
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
        again = _run(root, run.order, spec, watch=True)
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
    return f"raises {raised}" if raised and run.status == 1 << 8 else describe_exit(run.status, run.stderr)


def _run(root: Path, order: Sequence[str], spec: Spec, *, watch: bool = False) -> Run:
    """Run one order in a new Python; kill its process group at the time limit."""
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
            code = process.wait(timeout=_TIME_FACTOR * spec.seconds)
            in_time = True
        except subprocess.TimeoutExpired:
            in_time = False
            os.kill(process.pid, signal.SIGABRT)  # faulthandler writes the stack
            time.sleep(0.5)
        finally:
            rlimits.kill_group(process.pid)
            code = process.wait()
        status = -code if code < 0 else code << 8
        return Run(tuple(order), status, _tail(out), _tail(err), time.monotonic() - began, in_time)


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
