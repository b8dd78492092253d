"""The process of the extension: a fork server that imports the extension and its cases once, and runs no op.

It does not initialise CUDA, unless the extension does so when it is imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from builder.gate import discover
from builder.gate.check_table import TASK_CHECKS
from builder.gate.checks import compile_export
from builder.gate.checks.dispatch import unused_cpu_kernels
from builder.gate.checks.memory import heap_checks_work
from builder.gate.context import Context
from builder.gate.imports.cases_file import CasesFile, case_facts, load_cases
from builder.gate.imports.libraries import installed_libraries
from builder.gate.outcome import Spec
from builder.gate.processes import worker
from builder.gate.processes.fork_server import send_event, serve
from builder.gate.system.nvidia import hidden_gpus

#: Imported before the extension, so that no child imports them again. Modules that this torch lacks are skipped. The
#: first one is what a call of `torch.autograd.grad` imports.
PRELOAD = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.library",
    "torch.autograd.gradcheck",
    "torch._subclasses.fake_tensor",
    "torch._dynamo",
    "torch._dynamo.backends.debugging",
    "torch._functorch.aot_autograd",
    "torch.export",
    "torch.testing._internal.optests",
)

#: Modules of `builder.gate.checks` that trace ops.
TRACING = ("compile_export", "fake_tensor")


def load(root: Path, spec: Spec, events: int) -> tuple[Context, dict[str, Any]]:
    """Import the extension, with an event before each import; return it, and the facts for the scheduler.

    An exception of the extension's import or of cases.py becomes an entry of the fact `errors`.
    """
    facts: dict[str, Any] = {"imported": True, "errors": []}
    send_event(events, event="where", where=discover.where())
    recorder = discover.RegistrationRecorder(spec.imports)
    for name in dict.fromkeys([*spec.needs_first, *spec.imports]):
        send_event(events, event="importing", what=name)
        try:
            with recorder:
                importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 (SystemExit and KeyboardInterrupt are import errors too)
            facts["imported"] = False
            facts["errors"].append(f"import {name} raises {discover.one_line(error)}")
    # Before cases.py, which may import more of the extension than its users do.
    facts["libraries"] = installed_libraries(spec.name)
    send_event(events, event="importing", what="cases.py")
    file = load_cases(root) if spec.has_cases else CasesFile()
    ops = discover.ops(recorder, file.public)
    on_cpu = unused_cpu_kernels(file.cases, ops)
    cases = [case_facts(number, each, facts["imported"], on_cpu) for number, each in enumerate(file.cases)]
    facts.update(ops=ops, cases=cases, not_claimed=dict(file.not_claimed))
    facts.update(cases_problem=file.problem, mistake=file.mistake)
    return Context(spec, file.cases, ops), facts


def preload(spec: Spec, *, heap_checks: bool) -> None:
    """Import torch, the checks that run, and what they import while they run.

    Without cases no op is called. torch's compiler takes seconds to import, and only the plain server traces ops.
    """
    checks = [one for one in TASK_CHECKS if one.heap_checks == heap_checks and (spec.has_cases or one.per_extension)]
    modules = {one.function.partition(":")[0] for one in checks if not spec.checks or one.name in spec.checks}
    traced = not modules.isdisjoint(TRACING)
    import_all(PRELOAD if traced else PRELOAD[:1] if spec.has_cases else ())
    for module in sorted(modules):
        importlib.import_module(f"builder.gate.checks.{module}")
    if heap_checks:
        heap_checks_work()
    elif traced:
        compile_export.warm_up()


def import_all(names: Iterable[str]) -> None:
    """Import the modules of these that this torch has."""
    with hidden_gpus():
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def main(root: str, spec: Spec, commands: int, events: int, wait: Callable[[], None], *, heap_checks: bool) -> None:
    """Import everything, send "ready", serve. The starter has imported torch; `root` is on the path. Does not return.

    `wait` returns when the extension may be imported.
    """
    send_event(events, event="importing", what="torch")
    preload(spec, heap_checks=heap_checks)
    gc.freeze()  # what the extension imports is collected as usual
    gc.enable()
    wait()
    loaded, facts = load(Path(root), spec, events)
    gc.collect()
    serve(commands, events, partial(worker.run_child, loaded), facts)
