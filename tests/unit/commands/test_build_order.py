"""Builds that can share objects: the first of a group compiles before the others; other groups do not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from builder.commands.building.preflight import BuildOrder, Parallelism
from builder.matrix.axes import Cell, Python
from builder.matrix.plan import Build
from tests.conftest import PATIENCE
from tests.unit.wheels.make_record import BUILD

FIRST = BUILD
SECOND = replace(FIRST, pythons=(Cell.parse("torch2.6.0-cu124-cp311").python,))
OTHER = replace(FIRST, extension="other")
ALONE = Parallelism()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def compile_in(
    order: BuildOrder, build: Build, entered: threading.Event, waits: list[Build] | None = None
) -> Callable[[], None]:
    waits = [] if waits is None else waits

    def run() -> None:
        with order.compiling(build, ALONE, lambda: waits.append(build)):
            entered.set()

    return run


def test_the_second_python_waits_for_the_first_and_a_different_extension_does_not(pool: ThreadPoolExecutor) -> None:
    waits: list[Build] = []
    order, entered, other = BuildOrder([FIRST, SECOND, OTHER]), threading.Event(), threading.Event()
    with order.compiling(FIRST, ALONE):
        waiting = pool.submit(compile_in(order, SECOND, entered, waits))
        pool.submit(compile_in(order, OTHER, other, waits)).result(timeout=PATIENCE)
        assert other.is_set()
        assert not entered.is_set()
        assert waits == [SECOND]
    waiting.result(timeout=PATIENCE)
    assert entered.is_set()


def test_a_first_build_that_fails_releases_the_others(pool: ThreadPoolExecutor) -> None:
    order, entered = BuildOrder([FIRST, SECOND]), threading.Event()
    with pytest.raises(ValueError, match="broken"), order.compiling(FIRST, ALONE):
        raise ValueError("broken")
    pool.submit(compile_in(order, SECOND, entered)).result(timeout=PATIENCE)
    assert entered.is_set()


def test_builds_of_all_groups_start_in_turn() -> None:
    third, other = replace(SECOND, pythons=(Python(3, 14),)), replace(OTHER, pythons=SECOND.pythons)
    builds = [FIRST, SECOND, third, OTHER, other]
    assert BuildOrder(builds).ordered(builds) == [FIRST, OTHER, SECOND, other, third]
    assert BuildOrder([FIRST, SECOND, OTHER]).ordered([SECOND, FIRST, OTHER]) == [FIRST, OTHER, SECOND]


@pytest.mark.parametrize(
    ("builds", "build", "in_turn", "jobs"),
    [
        ([FIRST, SECOND], FIRST, False, 8),
        ([FIRST, SECOND], SECOND, False, 2),
        ([FIRST, SECOND], SECOND, True, 8),
        ([FIRST, SECOND, OTHER], FIRST, False, 2),  # builds that wait for the other group's first build may start
        ([FIRST, SECOND, OTHER], SECOND, True, 2),
        ([], FIRST, False, 2),
    ],
)
def test_a_build_gets_the_compilers_of_builds_that_wait_for_it(
    builds: list[Build], build: Build, jobs: int, *, in_turn: bool
) -> None:
    order = BuildOrder(builds, in_turn=in_turn)
    order.release(FIRST)
    with order.compiling(build, Parallelism(builds=4, jobs=2)) as given:
        assert given == jobs


@pytest.mark.parametrize("builds", [[], [FIRST, SECOND]], ids=["outside of the order", "the first is not compiled"])
def test_a_build_does_not_wait_for_what_is_not_compiled(builds: list[Build]) -> None:
    order = BuildOrder(builds)
    order.release(FIRST)
    with order.compiling(SECOND, ALONE):
        pass
