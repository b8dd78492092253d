"""Builds that can share objects: the first of a group compiles before the others; other groups do not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from builder.commands.building.build_order import BuildOrder
from builder.matrix.axes import AbiClass, Arch, Cell, Platform
from builder.matrix.plan import Build
from tests.conftest import PATIENCE

CELL = Cell.parse("torch2.6.0-cu124-cp310")
FIRST = Build(
    "ops", "1.0", AbiClass.CPYTHON, CELL.torch, CELL.cuda, (CELL.python,), (Arch(9, 0),), Platform.LINUX_X86_64, (CELL,)
)
SECOND = replace(FIRST, pythons=(Cell.parse("torch2.6.0-cu124-cp311").python,))
OTHER = replace(FIRST, extension="other")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def compile_in(order: BuildOrder, build: Build, entered: threading.Event) -> Callable[[], None]:
    def run() -> None:
        with order.compiling(build):
            entered.set()

    return run


def test_the_second_python_waits_for_the_first_and_a_different_extension_does_not(pool: ThreadPoolExecutor) -> None:
    order, entered, other = BuildOrder([FIRST, SECOND, OTHER]), threading.Event(), threading.Event()
    with order.compiling(FIRST):
        waiting = pool.submit(compile_in(order, SECOND, entered))
        pool.submit(compile_in(order, OTHER, other)).result(timeout=PATIENCE)
        assert other.is_set()
        assert not entered.is_set()
        assert [order.must_wait(build) for build in (FIRST, SECOND, OTHER)] == [False, True, False]
    assert not order.must_wait(SECOND)
    waiting.result(timeout=PATIENCE)
    assert entered.is_set()


def test_a_first_build_that_fails_releases_the_others(pool: ThreadPoolExecutor) -> None:
    order, entered = BuildOrder([FIRST, SECOND]), threading.Event()
    with pytest.raises(ValueError, match="broken"), order.compiling(FIRST):
        raise ValueError("broken")
    pool.submit(compile_in(order, SECOND, entered)).result(timeout=PATIENCE)
    assert entered.is_set()


def test_a_build_outside_of_the_order_does_not_wait() -> None:
    with BuildOrder([]).compiling(SECOND):
        pass


def test_the_first_builds_of_all_groups_start_first() -> None:
    assert BuildOrder([FIRST, SECOND, OTHER]).ordered([SECOND, FIRST, OTHER]) == [FIRST, OTHER, SECOND]


def test_the_first_build_of_a_single_group_gets_the_compilers_of_the_waiting_builds() -> None:
    order = BuildOrder([FIRST, SECOND])
    assert (order.jobs(FIRST, builds=4, jobs=2), order.jobs(SECOND, builds=4, jobs=2)) == (8, 2)
    two_groups = BuildOrder([FIRST, SECOND, OTHER])
    assert two_groups.jobs(FIRST, builds=4, jobs=2) == 2, "builds that wait for the other group may start meanwhile"
    assert BuildOrder([]).jobs(FIRST, builds=4, jobs=2) == 2


def test_a_first_build_that_is_not_compiled_releases_the_others() -> None:
    order = BuildOrder([FIRST, SECOND])
    order.release(FIRST)
    with order.compiling(SECOND):
        pass
