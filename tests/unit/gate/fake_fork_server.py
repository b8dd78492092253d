"""A fork server without torch, which forks a child for each task. The child does what its op is named after.

It can also stand for the judge, which passes every result.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from builder.gate.outcome import FAILED, PASSED, Outcome
from builder.gate.processes import fork_server
from builder.gate.processes.journal import KEY_BYTES, Journal
from builder.gate.processes.servers import GO
from builder.gate.system import rlimits
from builder.gate.system.nvidia import PROCESSES


def ready(ops: list[str]) -> dict[str, Any]:
    if ops == ["raises"]:
        error = "import toy raises ImportError"
        return {"imported": False, "cases": [], "ops": [], "errors": [error], "libraries": []}
    cases = [
        {"number": i, "op": op, "name": "plain", "devices": ["cpu", "cuda"] if "gpu" in op else ["cpu"]}
        for i, op in enumerate(ops)
    ]
    if ops == ["ns::uncased"]:
        cases = []
    return {"imported": True, "cases": cases, "ops": ops, "errors": [], "libraries": []}


def run_child(ops: list[str], command: dict[str, Any], key: int) -> int:
    journal = Journal(f"{command['task_dir']}/journal", os.read(key, KEY_BYTES))
    if command["check"] == "where":
        look_for_gpu(ops, journal)
    for number in command["cases"]:
        run_case(command, ops[number], os.getppid(), journal)
        journal.add(done=number)
    journal.add(end=True)
    return 0


def look_for_gpu(ops: list[str], journal: Journal) -> None:
    """Find none, unless the first op says how the driver behaves."""
    match ops[0]:
        case "ns::gpu-driver-crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "ns::gpu-driver-hangs":
            time.sleep(600)
        case "ns::gpu-for-one":
            journal.add(facts={"gpus": [{"name": "small"}], PROCESSES: 1})
        case _:
            journal.add(facts={"gpus": [], "no_gpu": "no GPU in a test"})


def run_case(command: dict[str, Any], op: str, parent: int, journal: Journal) -> None:  # noqa: PLR0912 (a table)
    """Do what the op is named after, then pass. The name of what an op does in the judge begins with "judge-"."""
    task_dir = Path(command["task_dir"])
    journal.step("float32")
    judged = command["function"].startswith("processes.judge_process")
    match op.removeprefix("judge-") if judged == op.startswith("judge-") else "ns::good":
        case "ns::segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "ns::loop":
            while True:
                time.sleep(1)
        case "ns::exits":
            os._exit(0)
        case "ns::kills" | "ns::kills-for-good":
            os.kill(parent, signal.SIGKILL)
            time.sleep(600)
        case "ns::stops":
            os.kill(parent, signal.SIGSTOP)
            time.sleep(600)
        case "ns::stranger":
            Path(task_dir, "journal").write_bytes(b'{"outcome": {"verdict": "passed"}}\n')
        case "ns::talks":
            while True:
                os.write(1, b"x" * (1 << 20))
        case "ns::children":
            rlimits.become_subreaper()
            for _ in range(5):
                daemon(200 << 20)
            time.sleep(600)
        case "ns::many":
            task = os.getpid()
            if not all(os.fork() for _ in range(300)):
                rlimits.exit_with_parent(task)  # the fake kills only the task
            time.sleep(600)
        case "ns::forks":
            if os.fork():
                os.wait()  # the copy writes to the journal first; the real worker waits for it too
        case "ns::gpu-for-one":
            lock = task_dir.with_name("gpu")
            lock.mkdir()  # fails beside another task on the GPU
            time.sleep(0.2)
            lock.rmdir()
        case "ns::wrong":
            journal.add(outcome=vars(Outcome(command["check"], op, "plain", FAILED, "1 is not 2")))
    if not op.endswith("ns::wrong") and ":send_" not in command["function"]:
        journal.add(outcome=vars(Outcome(command["check"], op, "plain", PASSED)))


def daemon(size: int) -> None:
    """Start a process in a new session, whose parent ends, which uses memory."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    between = os.getpid()
    if not os.fork():
        for _ in range(12_000):
            if os.getppid() != between:
                break
            time.sleep(0.01)
        rlimits.exit_with_parent(os.getppid())  # now the task
        kept = bytearray(b"x") * size
        time.sleep(600)
        del kept
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
    """Fork a server for each role, like the starter."""
    roles, mode = json.loads(sys.argv[1]), sys.argv[2]
    starter = os.getpid()
    for role in roles:
        if not os.fork():
            os.setsid()
            for other in roles:
                if other is not role:
                    os.close(other["commands"])
                    os.close(other["events"])
            log = os.open(Path(role["folder"], "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            os.chdir(role["folder"])
            while os.getppid() == starter:
                time.sleep(0.002)
            os.write(role["events"], json.dumps({"event": "forked", "pid": os.getpid()}).encode() + b"\n")
            serve(role["name"], role["commands"], role["events"], mode)
            return


def serve(name: str, commands: int, events: int, mode: str) -> None:
    """Be the fork server of this name until the pipe of commands closes."""
    ops, facts = mode.split(","), ready(mode.split(","))
    if name == "judge":
        facts = {"cases": [[one["op"], "plain", "", ["cpu"], {}] for one in facts["cases"]]}
    else:
        assert os.read(commands, len(GO)) == GO
        fail_to_start(events, name == "heap-checks", mode)
        fork_server.send_event(events, event="where", where={"torch": "2.99"})
    fork_server.serve(commands, events, partial(run_child, ops), facts)


if __name__ == "__main__":
    main()
