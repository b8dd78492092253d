"""Cells side by side: how many, with how many cores, and what a failure, an interrupt or little memory changes."""

import io
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from builder import process
from builder.process import Interrupted
from builder.proofs.cells.turns import CELL_MEMORY, Turns
from builder.resources import SPARE_MEMORY, Resources
from tests.conftest import PATIENCE, wait_until

#: What is free on a machine with 4 GB.
FOUR_GB = 3800 << 20


def turns(cores: int, memory: int = 64 << 30, *, gpu: bool = False) -> Turns:
    return Turns(lambda: Resources(cores, memory), lambda: gpu)


class Cells:
    """Tasks that take a turn, and how many of them ran at the same time."""

    def __init__(self, of: Turns, *, alone: bool = False) -> None:
        self.turns, self.alone = of, alone
        self.together = self.most = 0
        self.cores: list[int] = []
        self._lock = threading.Lock()

    def task(self, body: Callable[[], object] = lambda: None) -> str:
        with self.turns.turn(alone=self.alone) as cores:
            with self._lock:
                self.together += 1
                self.most = max(self.most, self.together)
                self.cores.append(cores)
            body()
            with self._lock:
                self.together -= 1
        return "proven"


@pytest.mark.parametrize(
    ("machine", "most", "cores"),
    [
        (turns(2), 2, [1, 1]),
        (turns(16), 3, [5, 5, 5]),
        (turns(16, SPARE_MEMORY + 2 * CELL_MEMORY), 2, [8, 8]),
        (turns(8, FOUR_GB), 1, [8]),
        (turns(8, 0), 1, [8]),
        (turns(8, gpu=True), 1, [8]),
    ],
    ids=["2 cores", "16 cores", "memory for 2", "4 GB", "no memory", "a GPU"],
)
def test_as_many_run_as_cores_and_memory_allow(machine: Turns, most: int, cores: list[int], tmp_path: Path) -> None:
    cells = Cells(machine)
    full = threading.Barrier(most)
    tasks: list[Callable[[], str]] = [partial(cells.task, partial(full.wait, PATIENCE))] * most
    tasks += [cells.task] * (3 - most)
    assert machine.side_by_side(tasks, tmp_path) == ["proven"] * 3
    assert (cells.most, cells.cores[:most]) == (most, cores)
    with machine.turn() as all_of_them:
        assert all_of_them == machine._measure().cores


def test_a_machine_with_4_gb_says_that_it_proves_one_at_a_time(output: io.StringIO, tmp_path: Path) -> None:
    machine = turns(8, FOUR_GB)
    for _ in range(2):
        machine.side_by_side([Cells(machine).task] * 3, tmp_path)
    assert output.getvalue() == (
        "proving 1 cell at a time: 3.7 GiB of memory are free, and 2 cells at the same time need 4.0 GiB\n"
    )


def test_a_container_runs_alone(tmp_path: Path) -> None:
    machine = turns(8)
    cells = Cells(machine, alone=True)
    machine.side_by_side([cells.task] * 3, tmp_path)
    assert (cells.most, cells.cores) == (1, [8, 8, 8])


def test_after_a_failure_those_that_run_end_and_no_other_begins(tmp_path: Path) -> None:
    machine, begun, ended = turns(2), threading.Event(), list[str]()

    def fail() -> None:
        assert begun.wait(PATIENCE)
        raise OSError("the disk is full")

    def other() -> None:
        begun.set()
        wait_until(lambda: machine._expected < 5, "the end of the one that fails")
        ended.append("one that ran")

    def never() -> None:
        ended.append("one that began after the failure")

    with pytest.raises(OSError, match="the disk is full"):
        machine.side_by_side([fail, other, *[never] * 3], tmp_path, most=2)
    assert ended == ["one that ran"]
    assert machine.side_by_side([Cells(machine).task], tmp_path) == ["proven"]
    assert machine._expected == 0


def test_an_interrupt_ends_the_wait_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = turns(1)
    monkeypatch.setattr(process, "_stopping", stopping := threading.Event())
    with machine.turn():
        found: list[BaseException] = []
        waits = threading.Event()

        def wait() -> None:
            try:
                with machine.turn(on_wait=waits.set):
                    pass
            except Interrupted as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        waits.wait(PATIENCE)
        stopping.set()
        thread.join(PATIENCE)
        assert (len(found), machine._running) == (1, 1)
