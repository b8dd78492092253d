"""What a worker keeps from `store prune`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.commands.distributed.worker.service import SECONDS_TO_COPY, Holds
from builder.storage.prune import prune
from builder.store import RUN, Store

WHEEL = f"received/{'a' * 64}"


class Later:
    """Functions to call after some time; `pass_by` calls them."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds == SECONDS_TO_COPY
        self.waiting.append(function)

    def pass_by(self, count: int) -> None:
        for function in self.waiting[:count]:
            function()
        del self.waiting[:count]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A worker's store with a wheel of another worker, a note and a log, all from long ago."""
    made = Store(tmp_path / "store")
    for name in (f"{WHEEL}/demo.whl", "remote/task.json", "logs/demo.log"):
        path = made.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    return made


def targets(store: Store) -> set[str]:
    return {item.target for item in prune(Store(store.root), 0).deleted}


def test_nothing_that_a_task_uses_is_deleted_until_others_have_copied_it(store: Store) -> None:
    later = Later()
    holds = Holds(store, later)
    with holds.held(RUN, WHEEL):
        assert targets(store) == set()
        assert store.last_use(WHEEL).year > 2000
    assert targets(store) == set()
    later.pass_by(1)
    assert targets(store) == {WHEEL, "remote/task.json", "logs/demo.log"}


def test_the_last_of_several_tasks_lets_go(store: Store) -> None:
    later = Later()
    holds = Holds(store, later)
    with holds.held(WHEEL):
        pass
    with holds.held(WHEEL):
        later.pass_by(1)
        assert WHEEL not in targets(store)
    later.pass_by(1)
    assert WHEEL in targets(store)
    assert not (store.root / WHEEL).exists()


def test_a_failed_task_lets_go(store: Store) -> None:
    later = Later()
    with pytest.raises(ValueError, match="x"), Holds(store, later).held(WHEEL):
        raise ValueError("x")
    later.pass_by(1)
    assert WHEEL in targets(store)
