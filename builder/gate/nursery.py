"""The process that imports torch, the extension and its cases once, executes nothing, and forks a child for each task.

Started by the conductor with two pipes. It reads one JSON line for each command and writes one for each event:

    {"fork": id, "function": ..., "case": n | null, "device": ..., "memory": bytes, "room": folder}   a task
    {"kill": id, "signal": n}                                                                      a signal to its child
    {"event": "importing", "what"}, {"event": "where", "where"}, {"event": "ready", ...}           the start
    {"event": "started", "id", "pid"}, {"event": "ended", "id", "status"}                          a child

It never initialises CUDA, starts no thread and never waits for a child, so it can always be told to kill one. When
the command pipe closes, because the conductor ended in whatever way, it kills every child and ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.gate import child, discover, heap, limits, tasks, traces
from builder.gate.outcome import Spec

#: Imported before the extension, so that no child pays for them. One that this torch lacks is left out.
PRELOAD = (
    "torch",
    "torch.library",
    "torch.autograd.gradcheck",
    "torch._subclasses.fake_tensor",
    "torch._dynamo",
    "torch._dynamo.backends.debugging",
    "torch._functorch.aot_autograd",
    "torch.fx.experimental.symbolic_shapes",
    "torch.export",
    "torch.testing._internal.optests",
)

#: Seconds for what was killed to be gone.
_PATIENCE = 2.0


@dataclass
class Nursery:
    """The loop: commands in, children forked and reaped, events out."""

    spec: Spec
    loaded: child.Loaded
    commands: int
    events: int

    def __post_init__(self) -> None:
        self._children: dict[int, int] = {}  # pid to task id
        self._pending = b""

    def run(self) -> None:
        """Serve until the command pipe closes."""
        limits.adopt_orphans()
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write, self.commands):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler is needed for the wake-up to come
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
                if self.commands in ready:
                    for command in self._commands():
                        if command is None:
                            self._end()
                            return
                        self._obey(command)

    def _commands(self) -> Iterator[dict[str, Any] | None]:
        """What has arrived; None at the end of the pipe."""
        try:
            data = os.read(self.commands, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            yield None
            return
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def _obey(self, command: dict[str, Any]) -> None:
        if "kill" in command:
            for pid, task in self._children.items():
                if task == command["kill"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, command["signal"])
            return
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in self._inherited:
                os.close(end)
            child.live(self.loaded, child.Errand.from_json(command), parent)  # does not return
        self._children[pid] = command["fork"]
        self._tell(event="started", id=command["fork"], pid=pid)

    def _reap(self) -> None:
        while True:
            try:
                # Looked at, not taken: while it is not taken its number, which is its group's, is nobody else's.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            task = self._children.pop(ended.si_pid, None)
            if task is not None:
                limits.kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if task is not None:
                self._kill_orphans()
                self._tell(event="ended", id=task, status=status)

    def _kill_orphans(self) -> None:
        """What a task left behind outside its group came to us: nothing may outlive its task."""
        for pid in limits.children():
            if pid not in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        for pid in self._children:
            limits.kill_group(pid)
        # What a child leaves comes to us only when the child is gone: until nothing comes any more.
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for pid in limits.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(0.01)
            except ChildProcessError:
                return

    def _tell(self, **event: Any) -> None:  # noqa: ANN401
        tell(self.events, **event)


def tell(events: int, **event: Any) -> None:  # noqa: ANN401
    """Write one event; a conductor that is gone is noticed at the command pipe."""
    with contextlib.suppress(BrokenPipeError):
        os.write(events, json.dumps(event, default=str).encode() + b"\n")


def load(root: Path, spec: Spec, events: int, guarded: bool) -> tuple[child.Loaded, dict[str, Any]]:
    """Import everything, telling each before it is begun; returns it with what the conductor needs to know of it.

    An exception of the extension's import, or of cases.py, is a fact to be told, not the end.
    """

    def importing(what: str) -> None:
        tell(events, event="importing", what=what)

    importing("torch")
    # Under the heap checks nothing is traced.
    for name in PRELOAD[:1] if guarded else PRELOAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module in sorted({check.function.partition(":")[0] for check in tasks.TABLE if check.guarded or not guarded}):
        importlib.import_module(f"builder.gate.{module}")
    if guarded:
        heap.checks_work()
    else:
        traces.warm_up()
    facts: dict[str, Any] = {"imported": True, "cases": [], "ops": [], "faults": []}
    tell(events, event="where", where=discover.where())
    watch = discover.Watch(spec.imports)
    for name in spec.imports:
        importing(name)
        try:
            with watch:
                importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 (SystemExit and KeyboardInterrupt are faults like any other)
            facts["imported"] = False
            facts["faults"].append(f"import {name} raises {discover.one_line(error)}")
    importing("cases.py")
    cases, public, fault = discover.load_cases(root) if spec.has_cases else ((), (), "")
    if fault:
        facts["faults"].append(fault)
    found = discover.ops(watch, public)
    facts["ops"] = found
    facts["cases"] = [discover.case_facts(number, case, facts["imported"]) for number, case in enumerate(cases)]
    facts["threads"] = limits.threads(os.getpid())
    return child.Loaded(spec, cases, tuple(found), guarded), facts


def main(root: str, commands: int, events: int, guarded: bool) -> None:
    """Load, tell that all is ready, serve. Called by `processes.nursery_command`, `root` being on the path."""
    spec = Spec(**json.loads(Path(root, "spec.json").read_text(encoding="utf-8")))
    loaded, facts = load(Path(root), spec, events, guarded)
    # A child that collects garbage would look at, and so copy, every page of torch: what is here now stays.
    gc.collect()
    gc.freeze()
    # From here on the pipe's end tells, in time to kill the children's children too.
    limits.outlive_parent()
    tell(events, event="ready", **facts)
    Nursery(spec, loaded, commands, events).run()
    os._exit(0)  # not through the exit handlers of what was imported
