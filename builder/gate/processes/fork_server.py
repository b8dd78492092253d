"""The loop of a fork server: forks a child for each command, and tells the scheduler how it ends. Needs no torch.

The starter gives it a socket and a pipe. It reads a JSON line for each command and writes one for each event:

    {"fork": id, "task_dir", ...}                                             a child, which gets the other entries
    {"kill": id, "signal": n}                                                                     signal its child
    {"event": "importing", "what"}, {"event": "where", "where"}, {"event": "ready", ...}          start-up
    {"event": "started", "id", "pid"}, {"event": "ended", "id", "status"}                         a child

With each "fork" comes a descriptor, from which the child reads the key of its journal. The server itself never reads
it, so the memory that its other children inherit does not contain the key.

It starts no thread and never blocks on a child, so it always obeys a "kill". When the command pipe closes, because the
scheduler has ended in any way, it kills every child and exits.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from builder.gate.processes.journal import LOG
from builder.gate.system import rlimits
from builder.gate.system.process_tree import children, end_descendants

#: What a child does with its command and the descriptor of its key; returns its exit status.
RunChild = Callable[["dict[str, Any]", int], int]

#: Seconds to wait for killed processes at the end.
_KILL_SECONDS = 2.0


def serve(commands: int, events: int, run_child: RunChild, facts: Mapping[str, Any]) -> None:
    """Send "ready" with these facts, and serve until the scheduler ends. Does not return."""
    gc.freeze()  # a garbage collection in a child would touch, and so copy, every page of torch
    # From here on the end of the pipe shows that the scheduler is gone, in time to kill the children's children too.
    rlimits.survive_parent()
    send_event(events, event="ready", **facts)
    _ForkServer(commands, events, run_child).run()
    os._exit(0)  # without the exit handlers of the imported modules


class _ForkServer:
    """Reads commands, forks and reaps children, writes events."""

    def __init__(self, commands: int, events: int, run_child: RunChild) -> None:
        self._commands, self._events, self._run_child = commands, events, run_child
        self._children: dict[int, int] = {}  # pid to the id of the command
        self._socket = socket.socket(fileno=commands)
        self._keys: list[int] = []  # descriptors of keys, in the order of the commands that they came with
        self._pending = b""

    def run(self) -> None:
        """Serve until the command pipe closes."""
        rlimits.become_subreaper()
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write, self._commands):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler there is no wake-up
        self._inherited = (wake_read, wake_write, self._commands, self._events)
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                self._reap()
                received = self._read_commands() if self._commands in ready else []
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
            self._become_child(command, parent, key)
        os.close(key)
        self._children[pid] = number
        send_event(self._events, event="started", id=number, pid=pid)

    def _become_child(self, command: dict[str, Any], parent: int, key: int) -> None:
        """Execute a command in a session of its own, with its output in the log of the task. Does not return."""
        status = 1
        try:
            os.setsid()
            rlimits.exit_with_parent(parent)
            rlimits.become_subreaper()  # every descendant counts for the limits of the task
            write_to(f"{command['task_dir']}/{LOG}")
            status = self._run_child(command, key)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 (nothing may return to the loop)
            traceback.print_exc()
        finally:
            os._exit(status)

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
            send_event(self._events, event="ended", id=task, status=status)


def write_to(log: str) -> None:
    """Let standard output and standard error of this process go to a file, and its standard input be empty."""
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for old, new in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(file)


def send_event(events: int, **event: Any) -> None:  # noqa: ANN401
    """Write one event; if the scheduler has ended, the closed command pipe shows it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(events, json.dumps(event, default=str).encode() + b"\n")
