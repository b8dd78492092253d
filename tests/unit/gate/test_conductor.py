"""The conductor beside a nursery that has no torch: every end is told, and it ends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import builder
from builder.gate.conductor import Conductor
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Answer, Outcome, Spec
from tests.unit.gate import fake_nursery

ROOT = Path(builder.__file__).parents[1]


def command(ops: str) -> object:
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.unit.gate.fake_nursery import main; main()"

    def build(_: Path, commands: int, events: int, guarded: bool) -> list[str]:
        return [sys.executable, "-c", script, str(commands), str(events), str(guarded), ops]

    return build


def gate(room: Path, ops: str, checks: tuple[str, ...] = ("ops", "values"), seconds: float = 30.0) -> Answer:
    spec = Spec("toy", ["toy"], checks=list(checks), seconds=seconds)
    return Conductor(ROOT, spec, room, command(ops)).run()  # type: ignore[arg-type]


def values(answer: Answer, op: str) -> Outcome:
    [found] = [one for one in answer.outcomes if one.check == "values" and one.op == op]
    return found


def test_every_op_is_run_and_told_in_order(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::b,ns::a", ("ops", "values", "fake"))
    assert answer.where == {"torch": "2.99", "gpus": [], "no_gpu": "no GPU in a test"}
    assert [(one.check, one.op) for one in answer.outcomes] == [
        (check, op) for check in ("ops", "values", "fake") for op in ("ns::b", "ns::a")
    ]
    assert {one.verdict for one in answer.outcomes} == {PASSED}


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("ns::segv", "dies with SIGSEGV (a segmentation fault), at: float32"),
        ("ns::exits", "ends the process with exit status 0"),
        ("ns::kills", "sends a signal to its parent"),
        ("ns::talks", "prints more than 64 MiB"),
        ("ns::forks", "forks, and the copy comes back"),
        ("ns::wrong", "1 is not 2"),
    ],
)
def test_an_op_that_ends_badly_is_named_and_the_others_go_on(tmp_path: Path, op: str, said: str) -> None:
    answer = gate(tmp_path, f"ns::good,{op},ns::fine")
    fault = values(answer, op)
    assert fault.verdict == FAILED
    assert said in fault.reason
    assert values(answer, "ns::good").verdict == values(answer, "ns::fine").verdict == PASSED


def test_an_endless_op_is_tried_once(tmp_path: Path) -> None:
    began = time.monotonic()
    answer = gate(tmp_path, "ns::loop,ns::fine", ("values", "layouts", "repeat", "compile"), seconds=1.0)
    assert "does not end within 1 s" in values(answer, "ns::loop").reason
    others = [one for one in answer.outcomes if one.op == "ns::loop" and one.check != "values"]
    assert {(one.verdict, one.reason) for one in others} == {
        (NOT_RUN, "not tried: the case does not end in the check 'values'")
    }
    assert time.monotonic() - began < 15


def test_a_nursery_that_dies_at_an_import_is_an_outcome(tmp_path: Path) -> None:
    answer = gate(tmp_path, "dies", ("ops", "values", "dispatch"))
    [ops, *others] = answer.outcomes
    assert ops.verdict == FAILED
    assert ops.reason.startswith("importing clashing dies with SIGSEGV")
    assert {one.check for one in others} == {"dispatch", "values"}
    assert {one.verdict for one in others} == {NOT_RUN}


def test_a_guarded_nursery_that_dies_fails_memory_alone(tmp_path: Path) -> None:
    answer = gate(tmp_path, "dies-guarded", ("values", "memory"))
    assert values(answer, "dies-guarded").verdict == PASSED
    memory = [one for one in answer.outcomes if one.check == "memory"]
    assert [one.verdict for one in memory] == [FAILED, NOT_RUN]
    assert "under glibc's heap checks" in memory[0].reason


def test_a_nursery_that_does_not_come_back_ends_the_run(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::kills-for-good,ns::fine,ns::good", ("values", "memory", "repeat"))
    assert any("importing clashing dies with SIGABRT" in one.reason for one in answer.outcomes)
    assert values(answer, "ns::kills-for-good").verdict != PASSED
    assert {one.check for one in answer.outcomes} == {"ops", "values", "memory", "repeat"}


def test_a_python_without_torch_is_told_as_such(tmp_path: Path) -> None:
    [fault, *_] = gate(tmp_path, "no-torch").outcomes
    assert fault.reason == "importing torch raises ModuleNotFoundError: No module named 'torch'"


def test_an_import_that_raises_is_a_failure_whatever_was_asked(tmp_path: Path) -> None:
    answer = gate(tmp_path, "raises", ("values",))
    assert [(one.check, one.verdict) for one in answer.outcomes] == [("ops", FAILED), ("values", NOT_RUN)]
    assert answer.outcomes[0].reason == "import toy raises ImportError"


def processes_below(pid: int) -> set[int]:
    """Every process that descends from this one; it may end while it is asked."""
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
            found |= {int(child)} | processes_below(int(child))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_conductor_is_ended(tmp_path: Path, number: int) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tests.unit.gate.test_conductor import gate\n"
        "from builder.gate.processes import terminate_as_interrupt, Interrupted\n"
        "terminate_as_interrupt()\n"
        f"try: gate(Path({str(tmp_path)!r}), 'ns::loop,ns::loop2')\n"
        "except Interrupted as stop: sys.exit(128 + stop.number)\n"
    )
    conductor = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while len(processes_below(conductor.pid)) < 2 or not list(tmp_path.glob("*/journal")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    below = processes_below(conductor.pid)
    os.kill(conductor.pid, number)
    status = conductor.wait(10)
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    while any(alive(pid) for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_fake_speaks_of_ready_as_the_real_one() -> None:
    assert set(fake_nursery.ready(["ns::a"])) == {"event", "imported", "cases", "ops", "faults", "threads"}
