"""Builds that share objects: the first compiles alone, the others after it, strangers whenever they like."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from builder.matrix.axes import AbiClass, Arch, Cell, Platform
from builder.matrix.plan import Build
from builder.turns import Turns

CELL = Cell.parse("torch2.6.0-cu124-cp310")
FIRST = Build(
    "ops", "1.0", AbiClass.CPYTHON, CELL.torch, CELL.cuda, (CELL.python,), (Arch(9, 0),), Platform.LINUX_X86_64, (CELL,)
)
SECOND = replace(FIRST, pythons=(Cell.parse("torch2.6.0-cu124-cp311").python,))
OTHER = replace(FIRST, extension="other")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def taking(turns: Turns, build: Build, entered: threading.Event) -> Callable[[], None]:
    def take() -> None:
        with turns.turn(build):
            entered.set()

    return take


def test_the_second_python_waits_for_the_first_and_a_stranger_does_not(pool: ThreadPoolExecutor) -> None:
    turns, entered, stranger = Turns([FIRST, SECOND, OTHER]), threading.Event(), threading.Event()
    with turns.turn(FIRST):
        waiting = pool.submit(taking(turns, SECOND, entered))
        pool.submit(taking(turns, OTHER, stranger)).result(timeout=30)
        assert stranger.is_set()
        assert not entered.is_set()
    waiting.result(timeout=30)
    assert entered.is_set()


def test_a_first_one_that_fails_lets_the_others_go(pool: ThreadPoolExecutor) -> None:
    turns, entered = Turns([FIRST, SECOND]), threading.Event()
    with pytest.raises(ValueError, match="broken"), turns.turn(FIRST):
        raise ValueError("broken")
    pool.submit(taking(turns, SECOND, entered)).result(timeout=30)
    assert entered.is_set()


def test_a_build_nobody_compiles_waits_for_none() -> None:
    with Turns([]).turn(SECOND):
        pass


def test_firsts_are_started_first() -> None:
    assert Turns([FIRST, SECOND, OTHER]).ordered([SECOND, FIRST, OTHER]) == [FIRST, OTHER, SECOND]


def test_a_first_one_has_the_cores_of_those_that_wait() -> None:
    turns = Turns([FIRST, SECOND])
    assert (turns.jobs(FIRST, builds=4, jobs=2), turns.jobs(SECOND, builds=4, jobs=2)) == (8, 2)
    beside = Turns([FIRST, SECOND, OTHER])
    assert beside.jobs(FIRST, builds=4, jobs=2) == 2, "those that wait for the other may start meanwhile"
    assert Turns([]).jobs(FIRST, builds=4, jobs=2) == 2


def test_one_that_never_gets_to_compile_lets_the_others_go() -> None:
    turns = Turns([FIRST, SECOND])
    turns.release(FIRST)
    with turns.turn(SECOND):
        pass
