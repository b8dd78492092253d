"""Two farms publish into one folder at the same time."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from builder.commands.building import build
from builder.matrix.plan import Plan
from builder.publish.index.dist_index import write_index
from tests.conftest import PATIENCE, wait_until
from tests.unit.loopback import pure_wheel


def first(dist: Path, ready: Event, asks: Event, done: Event) -> None:
    """Put a wheel into the folder and publish; the index is written when the second farm is about to do the same."""

    def slow(*arguments: Any) -> Path:
        ready.set()
        wait_until(lambda: asks.is_set() or done.is_set(), "the second farm")
        done.wait(1)  # which can only be while it does not wait for this farm
        return write_index(*arguments)

    pure_wheel(dist, "one", "1.0")
    vars(build)["write_index"] = slow
    build._publish(dist, Plan((), ()), [])


def second(dist: Path, ready: Event, asks: Event, done: Event) -> None:
    """Publish another wheel after the first farm has listed the wheels."""
    locked: Callable[[Path], Any] = vars(build)["locked"]

    def noted(folder: Path) -> Any:
        asks.set()
        return locked(folder)

    assert ready.wait(PATIENCE)
    pure_wheel(dist, "two", "1.0")
    vars(build)["locked"] = noted
    build._publish(dist, Plan((), ()), [])
    done.set()


def test_the_index_lists_the_wheels_of_both(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    context = multiprocessing.get_context("spawn")
    events = [context.Event() for _ in range(3)]
    farms = [context.Process(target=farm, args=(dist, *events)) for farm in (first, second)]
    try:
        for process in farms:
            process.start()
        for process in farms:
            process.join(3 * PATIENCE)
            assert process.exitcode == 0
    finally:
        for process in farms:
            process.kill()
    listed = json.loads((dist / "simple/index.json").read_bytes())["projects"]
    assert [project["name"] for project in listed] == ["one", "two"]


def test_a_wheel_that_vanishes_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanishing(dist: Path, wheels: list[Path], *more: Any) -> Path:
        for wheel in wheels:
            wheel.unlink(missing_ok=True)
        return write_index(dist, wheels, *more)

    pure_wheel(tmp_path / "dist", "one", "1.0")
    monkeypatch.setattr(build, "write_index", vanishing)
    build._publish(tmp_path / "dist", Plan((), ()), [])
    assert json.loads((tmp_path / "dist/simple/index.json").read_bytes())["projects"] == []
