"""Two farms publish into one folder at the same time."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from builder.commands.building import build
from builder.matrix.plan import Plan
from builder.publish.index.dist_index import write_index
from tests.unit.loopback import pure_wheel


def farm(dist: Path, project: str, seconds: float) -> None:
    """Put a wheel into the folder and publish; the index is written some time after its wheels were listed."""

    def slow(*arguments: Any) -> Path:
        time.sleep(seconds)
        return write_index(*arguments)

    if project == "two":
        wait_for(dist / "report.json")  # the other farm is about to list the wheels
        time.sleep(0.5)
    vars(build)["write_index"] = slow
    pure_wheel(dist, project, "1.0")
    build._publish(dist, Plan((), ()), [])


def wait_for(file: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_index_lists_the_wheels_of_both(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    context = multiprocessing.get_context("spawn")
    farms = [context.Process(target=farm, args=(dist, *each)) for each in (("two", 0.0), ("one", 3.0))]
    for process in farms:
        process.start()
        time.sleep(6 if process is farms[0] else 0)  # the second farm has imported its modules when the first publishes
    for process in farms:
        process.join(60)
        assert process.exitcode == 0
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
