"""A nursery without torch: tells ready, forks a child for each task, which does what the name of its op says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from builder.gate.journal import Journal
from builder.gate.outcome import FAILED, PASSED, Outcome


def ready(ops: list[str]) -> dict[str, Any]:
    if ops == ["raises"]:
        fault = "import toy raises ImportError"
        return {"event": "ready", "imported": False, "cases": [], "ops": [], "faults": [fault], "threads": 1}
    cases = [{"number": i, "op": op, "name": "plain", "devices": ["cpu"]} for i, op in enumerate(ops)]
    return {"event": "ready", "imported": True, "cases": cases, "ops": ops, "faults": [], "threads": 1}


def live(command: dict[str, Any], ops: list[str], parent: int) -> None:  # noqa: PLR0912 (a table)
    os.setsid()
    room = Path(command["room"])
    log = os.open(room / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    journal = Journal(str(room / "journal"))
    if command["check"] == "where":
        journal.facts({"gpus": [], "no_gpu": "no GPU in a test"})
    else:
        op = ops[command["case"]] if command["case"] is not None else ""
        journal.doing("float32")
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
                    os.wait()  # the copy has to leave word first; the real child gives it time too
            case "ns::wrong":
                journal.outcome(Outcome(command["check"], op, "plain", FAILED, "1 is not 2"))
        if op != "ns::wrong":
            journal.outcome(Outcome(command["check"], op, "plain", PASSED))
    journal.end()
    os._exit(0)


def main() -> None:  # noqa: PLR0912 (one loop, read in one go)
    commands, events, guarded, ops = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True", sys.argv[4].split(",")
    if sys.argv[4] == "dies":
        os.write(events, b'{"event": "importing", "what": "clashing"}\n')
        os.kill(os.getpid(), signal.SIGSEGV)
    if "ns::kills-for-good" in ops and not guarded:
        if Path("../second-life").exists():
            os.write(events, b'{"event": "importing", "what": "clashing"}\n')
            os.abort()
        Path("../second-life").touch()
    if sys.argv[4] == "no-torch":
        os.write(events, b'{"event": "importing", "what": "torch"}\n')
        raise ModuleNotFoundError("No module named 'torch'")
    if guarded and "dies-guarded" in ops:
        os.write(events, b'{"event": "importing", "what": "clashing"}\n')
        os.abort()

    def tell(**event: Any) -> None:
        os.write(events, json.dumps(event).encode() + b"\n")

    tell(event="where", where={"torch": "2.99"})
    tell(**ready(ops))
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
                live(command, ops, parent)
            children[pid] = command["fork"]
            tell(event="started", id=command["fork"], pid=pid)
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                tell(event="ended", id=children.pop(pid), status=status)


if __name__ == "__main__":
    main()
