"""The fork server: imports the extension and its cases once, runs no op, and forks a child for each task.

The starter gives it torch, a socket and a pipe. It reads a JSON line for each command and writes one for each event:

    {"fork": id, "check", "function", "cases": [n], "data": [file], "seconds", "device", "memory", "task_dir"} a task
    {"kill": id, "signal": n}                                                                 signal its child
    {"event": "importing", "what"}, {"event": "where", "where"}, {"event": "ready", ...}      start-up
    {"event": "started", "id", "pid"}, {"event": "ended", "id", "status"}                     a child

With each "fork" comes a descriptor, from which the child reads the key of its journal. The server itself never reads
it, so the memory that its other children inherit does not contain the key.

It does not initialise CUDA, unless the extension does so when it is imported. It starts no thread and never blocks on a
child, so it always obeys a "kill". When the command pipe closes, because the scheduler has ended in any way, it kills
every child and exits.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.gate import discover
from builder.gate.check_table import TASK_CHECKS
from builder.gate.checks import compile_export
from builder.gate.checks.dispatch import unused_cpu_kernels
from builder.gate.checks.memory import heap_checks_work
from builder.gate.context import Context
from builder.gate.imports.cases_fault import lines_of_ops
from builder.gate.imports.cases_file import CasesFile, case_facts, load_cases
from builder.gate.imports.libraries import installed_libraries
from builder.gate.outcome import Spec
from builder.gate.processes import worker
from builder.gate.system import rlimits
from builder.gate.system.nvidia import hidden_gpus
from builder.gate.system.process_tree import children, end_descendants

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

#: Seconds to wait for killed processes at the end.
_KILL_SECONDS = 2.0


@dataclass
class ForkServer:
    """The loop: reads commands, forks and reaps children, writes events."""

    #: What the children inherit.
    loaded: Context
    #: File descriptor of the socket from which commands arrive.
    commands: int
    #: File descriptor of the event pipe.
    events: int

    def __post_init__(self) -> None:
        self._children: dict[int, int] = {}  # pid to task id
        self._socket = socket.socket(fileno=self.commands)
        self._keys: list[int] = []  # descriptors of keys, in the order of the commands that they came with
        self._pending = b""

    def run(self) -> None:
        """Serve until the command pipe closes."""
        rlimits.become_subreaper()
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write, self.commands):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler there is no wake-up
        self._inherited = (wake_read, wake_write, self.commands, self.events)
        with selectors.DefaultSelector() as selector:
            selector.register(self.commands, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                self._reap()
                received = self._read_commands() if self.commands in ready else []
                if received is None:
                    end_descendants(_KILL_SECONDS)
                    return
                for command in received:
                    self._execute(command)

    def _read_commands(self) -> list[dict[str, Any]] | None:
        """Return the commands that have arrived; None at the end of the pipe."""
        try:
            data, keys, _, _ = socket.recv_fds(self._socket, 1 << 16, 64)
        except BlockingIOError:
            return []
        if not data:
            return None
        self._keys += keys
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _execute(self, command: dict[str, Any]) -> None:
        if "kill" in command:
            for pid, task in self._children.items():
                if task == command["kill"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, command["signal"])
            return
        parent, key, number = os.getpid(), self._keys.pop(0), command.pop("fork")
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in self._inherited:
                os.close(end)
            worker.run_child(self.loaded, worker.TaskRequest(**command), parent, key)  # does not return
        os.close(key)
        self._children[pid] = number
        send_event(self.events, event="started", id=number, pid=pid)

    def _reap(self) -> None:
        while True:
            try:
                # WNOWAIT leaves the zombie in place, so that its pid, which is its group's id, cannot be reused yet.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            task = self._children.pop(ended.si_pid, None)
            if task is not None:
                rlimits.kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if task is None:
                continue
            # Kill processes that the task left outside its process group; as subreaper we are their parent now.
            for pid in children(os.getpid()):
                if pid not in self._children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            send_event(self.events, event="ended", id=task, status=status)


def send_event(events: int, **event: Any) -> None:  # noqa: ANN401
    """Write one event; if the scheduler has ended, the closed command pipe shows it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(events, json.dumps(event, default=str).encode() + b"\n")


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
    facts["libraries"] = installed_libraries(spec.name, spec.variants)
    send_event(events, event="importing", what="cases.py")
    file = load_cases(root) if spec.has_cases else CasesFile()
    ops = discover.ops(recorder, file.public)
    lines = lines_of_ops(root)
    on_cpu = unused_cpu_kernels(file.cases, ops)
    cases = [case_facts(number, each, facts["imported"], lines, on_cpu) for number, each in enumerate(file.cases)]
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
    # A garbage collection in a child would touch, and so copy, every page of torch: freeze what exists now.
    gc.collect()
    gc.freeze()
    # From here on the end of the pipe shows that the scheduler is gone, in time to kill the children's children too.
    rlimits.survive_parent()
    send_event(events, event="ready", **facts)
    ForkServer(loaded, commands, events).run()
    os._exit(0)  # without the exit handlers of the imported modules
