"""A fork server without torch: sends "ready" and forks a child for each task, which does what its op is named after."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from builder.gate.outcome import FAILED, PASSED, Outcome
from builder.gate.processes.journal import Journal


def ready(ops: list[str]) -> dict[str, Any]:
    if ops == ["raises"]:
        error = "import toy raises ImportError"
        return {
            "event": "ready",
            "imported": False,
            "cases": [],
            "ops": [],
            "errors": [error],
            "threads": 1,
            "libraries": [],
        }
    cases = [{"number": i, "op": op, "name": "plain", "devices": ["cpu"]} for i, op in enumerate(ops)]
    if ops == ["ns::uncased"]:
        cases = []
    return {"event": "ready", "imported": True, "cases": cases, "ops": ops, "errors": [], "threads": 1, "libraries": []}


def run_child(command: dict[str, Any], ops: list[str], parent: int) -> None:  # noqa: PLR0912 (a table)
    os.setsid()
    task_dir = Path(command["task_dir"])
    log = os.open(task_dir / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    journal = Journal(str(task_dir / "journal"))
    if command["check"] == "where":
        journal.facts({"gpus": [], "no_gpu": "no GPU in a test"})
    else:
        op = ops[command["case"]] if command["case"] is not None else ""
        journal.step("float32")
        match op:
            case "ns::segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "ns::loop":
                while True:
                    time.sleep(1)
            case "ns::exits":
                os._exit(0)
            case "ns::kills" | "ns::kills-for-good":
                os.kill(parent, signal.SIGKILL)
                time.sleep(60)
            case "ns::talks":
                while True:
                    os.write(1, b"x" * (1 << 20))
            case "ns::forks":
                if os.fork():
                    os.wait()  # the copy writes to the journal first; the real worker waits for it too
            case "ns::wrong":
                journal.outcome(Outcome(command["check"], op, "plain", FAILED, "1 is not 2"))
        if op != "ns::wrong":
            journal.outcome(Outcome(command["check"], op, "plain", PASSED))
    journal.end()
    os._exit(0)


def fail_to_start(events: int, heap_checks: bool, mode: str) -> None:
    """Die, or raise, if the mode or one of its ops says so."""
    ops = mode.split(",")
    if mode == "dies":
        os.write(events, b'{"event": "importing", "what": "clashing"}\n')
        os.kill(os.getpid(), signal.SIGSEGV)
    if "ns::kills-for-good" in ops and not heap_checks:
        if Path("../restarted").exists():
            os.write(events, b'{"event": "importing", "what": "clashing"}\n')
            os.abort()
        Path("../restarted").touch()
    if mode == "no-torch":
        os.write(events, b'{"event": "importing", "what": "torch"}\n')
        raise ModuleNotFoundError("No module named 'torch'")
    if heap_checks and "dies-under-heap-checks" in ops:
        os.write(events, b'{"event": "importing", "what": "clashing"}\n')
        os.abort()


def main() -> None:
    commands, events, heap_checks, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True", sys.argv[4]
    fail_to_start(events, heap_checks, mode)
    ops = mode.split(",")

    def send_event(**event: Any) -> None:
        os.write(events, json.dumps(event).encode() + b"\n")

    send_event(event="where", where={"torch": "2.99"})
    send_event(**ready(ops))
    children: dict[int, int] = {}
    pending = b""
    os.set_blocking(commands, False)
    while True:
        try:
            data = os.read(commands, 65536)
            if not data:
                for pid in children:
                    os.killpg(pid, signal.SIGKILL)
                return
            pending += data
        except BlockingIOError:
            time.sleep(0.005)
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            command = json.loads(line)
            if "kill" in command:
                for pid, task in children.items():
                    if task == command["kill"]:
                        os.kill(pid, command["signal"])
                continue
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                os.close(commands)
                os.close(events)
                run_child(command, ops, parent)
            children[pid] = command["fork"]
            send_event(event="started", id=command["fork"], pid=pid)
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                send_event(event="ended", id=children.pop(pid), status=status)


if __name__ == "__main__":
    main()
