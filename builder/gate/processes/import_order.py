"""The check "import-order": torch, the extension and its companions, imported in every order, each in its own process.

Each order ends with a call of one op. An order that begins with torch is forked by the launcher, which has imported
torch and nothing else; if it fails, it runs again in a new Python, which decides. Any other order is a new Python,
because conflicts between libraries show only if nothing else was imported before. An order that crashes runs a second
time with `install_crash_handlers` for its native stack; the first run has no handlers, as in a user's process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from builder.gate.amounts import counted
from builder.gate.imports.launcher import Launcher
from builder.gate.imports.packages import add_packages
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.journal import JOURNAL, KEY_BYTES, Journal
from builder.gate.system import rlimits
from builder.gate.system.crash import crash_frame, describe_exit, fatal_signal, native_stack
from builder.gate.system.exit_status import ProcessExit
from builder.gate.system.process_tree import is_stopped, parent_of

#: Up to this many modules, orders that contain each pair in both directions are all orders.
ALL = 3
#: Prefixes of the lines that the process of an order prints.
STEP, CALLED = "buildfarm-step ", "buildfarm-called "
#: Time limit of one order as a multiple of the spec's: it imports torch from disk, several in parallel.
_TIME_FACTOR = 3.0
#: Seconds between two looks at a process that runs.
_LOOK_SECONDS = 1.0
#: Seconds in which a killed process disappears.
_KILL_SECONDS = 30.0
#: torch's message for a second TORCH_LIBRARY of one name.
_TWICE = re.compile(r"Only a single (?:STABLE_)?TORCH_LIBRARY can be used to register the namespace (\w+)")
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
for name in names:
    os.write(2, ("{STEP}import " + name + "\\n").encode())
    importlib.import_module(name)
sys.path.insert(0, root)
from builder.gate.imports.cases_file import call_first
os.write(2, b"{STEP}call\\n")
called = call_first(root, lambda op: os.write(2, ("{STEP}call " + op + "\\n").encode()))
os.write(1, ("\\n{CALLED}" + called + "\\n").encode())
os._exit(0)
"""


@dataclass(frozen=True)
class OrderRun:
    """How one order ended; `status` is a wait status."""

    order: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    #: "time" or "stopped" if it was killed for that, or "".
    limit: str = ""

    @property
    def good(self) -> bool:
        """Whether every module was imported and, if a case allows it, an op was called."""
        return self.status == 0 and not self.limit

    @property
    def step(self) -> str:
        """The last step: "import torch", "call ns::op"."""
        return (_told(STEP, self.stderr) or ["the start of Python"])[-1]

    @property
    def called(self) -> str:
        """The op that was called at the end and returned, or ""."""
        return (_told(CALLED, self.stdout) or [""])[-1].strip()

    @property
    def imported(self) -> str:
        """The module whose import was the last step, or ""."""
        name = self.step[len("import ") :] if self.step.startswith("import ") else ""
        return name if name in self.order else ""

    @property
    def so_far(self) -> list[str]:
        """The modules imported until it ended, with versions."""
        order = self.order[: self.order.index(self.imported) + 1] if self.imported else self.order
        return [f"{one} {version_of(one)}".strip() for one in order]

    @property
    def kind(self) -> tuple[str, int]:
        """The kind of failure: the last step and the signal."""
        return self.step, fatal_signal(self.status, self.stderr)


def _told(prefix: str, output: str) -> list[str]:
    """Return the lines of the output with this prefix, without it."""
    return [line[len(prefix) :] for line in output.splitlines() if line.startswith(prefix)]


def orders_of(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield orders that contain each pair of modules in both directions: all orders of up to three modules.

    These are: for each pair (a, b) the order a, b, rest; and for each module the order rest, module. About n * n. The
    first module is torch, which comes last in the rest.
    """
    for first, second in itertools.permutations(names, 2):
        rest = [name for name in names[1:] if name not in {first, second}]
        yield first, second, *rest, *([names[0]] if names[0] not in {first, second} else [])
    for last in names:
        yield *(name for name in names if name != last), last


def allowed_order(order: tuple[str, ...], spec: Spec) -> tuple[str, ...]:
    """Return the order with the modules of `needs_first` moved before the first module of the extension."""
    first = min((order.index(name) for name in spec.imports if name not in spec.needs_first), default=0)
    late = [name for name in order[first:] if name in spec.needs_first]
    return (*order[:first], *late, *(name for name in order[first:] if name not in late))


def cure_of(run: OrderRun, alike: Sequence[OrderRun], runs: Sequence[OrderRun], spec: Spec) -> str:
    """Return which module must come later or earlier, as a sentence, or "". `alike` are the runs that fail like `run`.

    A module is guilty if it precedes the failing import in every failed order and in no good one. A module is needed if
    it does so in every good order and in no failed one.
    """
    victim = run.imported

    def before(one: OrderRun) -> set[str]:
        return set(one.order[: one.order.index(victim)])

    good = [before(one) for one in runs if one.good and victim in one.order]
    if not victim or not good:
        return ""
    bad = [before(one) for one in alike]
    guilty = set.intersection(*bad).difference(*good)
    if named := ", ".join(f"{one} {version_of(one)}".strip() for one in run.order if one in guilty):
        return f". The failure occurs only if {named} is imported before {victim}: import {victim} first"
    needed = [name for name in run.order if name in set.intersection(*good).difference(*bad)]
    if victim not in spec.imports or not needed:
        return ""
    return (
        f". The failure occurs only if {needed[0]} is not imported before {victim}: add `import {needed[0]}` at the "
        f"top of the package, or `needs_first: [{needed[0]}]` to the recipe"
    )


def version_of(module: str) -> str:
    """Return the version of a module's distribution, or ""."""
    name = module.partition(".")[0]
    for candidate in (name, name.replace("_", "-")):
        try:
            return metadata.version(candidate)
        except metadata.PackageNotFoundError:
            continue
    return ""


def import_orders(spec: Spec, root: Path, launcher: Launcher | None = None) -> Iterator[Outcome]:
    """Yield the outcome of all orders, and "not run" for each companion that is not installed.

    `root` is the folder of the packed gate, with `builder/` and cases.py. Without a launcher every process is a new
    Python.
    """
    present: list[str] = []
    for companion in spec.companions:
        module = _module_of(companion)
        if module is None:
            reason = f"{companion} is not installed, so no order with this package can be tested"
            yield Outcome("import-order", "", companion, NOT_RUN, reason)
        else:
            present.append(module)
    names = tuple(dict.fromkeys(["torch", *spec.needs_first, *spec.imports, *present]))
    orders = list(dict.fromkeys(allowed_order(order, spec) for order in orders_of(names)))
    began = time.monotonic()
    with_torch = [order for order in orders if order[0] == "torch"]
    with ThreadPoolExecutor(max(1, spec.jobs)) as pool:
        forked = pool.submit(_run_forked, root, with_torch, spec, launcher)
        others = pool.map(partial(_run, root, spec=spec), [order for order in orders if order[0] != "torch"])
        runs = [*forked.result(), *others]
    yield _judged(spec, root, names, runs, time.monotonic() - began)


def _run_forked(root: Path, orders: Sequence[tuple[str, ...]], spec: Spec, launcher: Launcher | None) -> list[OrderRun]:
    """Run orders that begin with torch one after another in forks of the launcher; where one fails, in a new Python."""
    runs = []
    for order in orders:
        run = None
        if launcher:
            try:
                run = _run(root, order, spec, launcher=launcher)
            except OSError:  # it has ended, or does not answer
                launcher = None
        runs.append(run if run and run.good else _run(root, order, spec))
    return runs


def _judged(spec: Spec, root: Path, names: Sequence[str], runs: Sequence[OrderRun], seconds: float) -> Outcome:
    bad, good = [run for run in runs if not run.good], [run for run in runs if run.good]
    evidence: dict[str, Any] = {
        "modules": list(names),
        "orders": {", ".join(run.order): "works" if run.good else _ended(run, spec) for run in runs},
        "all orders": len(names) <= ALL and not spec.needs_first,
        "called": sorted({run.called for run in good}),
    }
    if not bad:
        figure = counted(len(runs), "order")
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
        cure = cure_of(run, alike, runs, spec)
        failures.append(f"{', then '.join(run.so_far)}: {run.step} {description}{cure}")
        evidence.setdefault("stacks", {})[", ".join(run.order)] = stack
    works = f"; the order {', '.join(good[0].order)} works" if good else "; no order works"
    return Outcome("import-order", "", "", FAILED, "; ".join(failures) + works, seconds, evidence)


def _different_ops(runs: Sequence[OrderRun]) -> str:
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


def _rerun_with_stacks(spec: Spec, root: Path, run: OrderRun) -> tuple[str, dict[str, Any]]:
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
        **({"limit": run.limit} if run.limit else {}),
    }


def _ended(run: OrderRun, spec: Spec) -> str:
    if run.limit == "stopped":
        return ProcessExit(run.status, run.limit).sentence()
    if run.limit:
        return f"does not end within {_TIME_FACTOR * spec.seconds:g} s"
    text = describe_exit(run.status, run.stderr)
    if twice := _TWICE.search(text):
        text += f": two libraries have `TORCH_LIBRARY({twice[1]}, m)`; rename the namespace in one, or use"
        text += " `TORCH_LIBRARY_FRAGMENT` in both"
    return text


def _run(
    root: Path, order: Sequence[str], spec: Spec, mode: str = "plain", launcher: Launcher | None = None
) -> OrderRun:
    """Run one order in a new Python, or in a fork of the launcher; kill its process group at the time limit.

    `mode` is "watch" to install crash handlers, or "plain".
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
        limit, status = "", None
        try:
            while status is None and not limit:
                with contextlib.suppress(TimeoutError):
                    status = wait(_LOOK_SECONDS)
                if launcher and status is None and is_stopped(parent_of(pid)):
                    raise OSError("the launcher is stopped")
                if status is None and time.monotonic() - began > _TIME_FACTOR * spec.seconds:
                    limit = "time"
                if status is None and is_stopped(pid):
                    limit = "stopped"
            if limit == "time":
                os.kill(pid, signal.SIGABRT)  # faulthandler writes the stack
                time.sleep(0.5)
        finally:
            rlimits.kill_group(pid)
        if status is None:
            status = wait(_KILL_SECONDS)
        return OrderRun(tuple(order), status, _tail(out), _tail(err), limit)


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


def main(root: str, task_dir: str, key: str, launcher: str = "") -> None:
    """Write the outcomes of the check to the journal.

    `key` is the number of a descriptor with the key of the journal, `launcher` that of the launcher's socket.
    """
    rlimits.exit_with_parent(os.getppid())
    add_packages()  # not by Python itself, which would execute code of the wheel that could read the key
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs every `finally`, which ends the started processes
    spec = Spec.read(Path(root))
    journal = Journal(str(Path(task_dir, JOURNAL)), os.read(int(key), KEY_BYTES))
    os.close(int(key))
    try:
        connection = Launcher(socket.socket(fileno=int(launcher))) if launcher else None
        for outcome in import_orders(spec, Path(root), connection):
            journal.outcome(outcome)
    except Exception:  # noqa: BLE001 (the scheduler reports the traceback from the log)
        traceback.print_exc()
        sys.exit(1)
    journal.end()
