"""From rendered text to an image, and what a killed or cut run leaves of it, against a fake engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import Exit, FarmError, MissingToolError
from builder.images.abandoned import end_abandoned
from builder.images.container import LABEL
from builder.images.engine import Engine
from builder.images.making import ensure_image, known_insides, look_inside
from builder.images.specs import BuildImage, Choice
from builder.matrix.axes import AbiClass, Arch, Cell
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule
from builder.matrix.plan import Build
from builder.process import JOB_VARIABLE
from builder.store import Store
from tests.unit.images.fake_engine import FakeEngine, running_engine
from tests.unit.matrix.make import matrix

CELL = Cell.parse("torch2.11.0-cu130-cp312")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    (tmp_path / "engine").mkdir()
    with running_engine(tmp_path / "engine", monkeypatch) as engine:
        engine.add_image("base:bookworm", "sha256:base")
        engine.add_image("pythons:1", "sha256:pythons")
        engine.said = "gxx=12.2.0\nnvcc=\npython=3.12.1\npath=/usr/bin\n"
        yield engine


@pytest.fixture
def image() -> BuildImage:
    rules = (ImageRule("*", "base:bookworm", "pythons:1"),)
    choice = Choice(replace(matrix(["2.11"], ["13.0"], ["3.12"]), images=rules), Compat.load(), {})
    build = Build(
        "toy", "1.0", AbiClass.CPYTHON, CELL.torch, CELL.cuda, (CELL.python,), (Arch(9, 0),), CELL.platform, (CELL,)
    )
    return choice.build_image(build)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def fault(fake: FakeEngine, store: Store, image: BuildImage) -> FarmError:
    with pytest.raises(FarmError) as caught:
        ensure_image(Engine(), store, image, log=fake.root / "log")
    return caught.value


def test_made_once_and_looked_into_once(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    assert known_insides(Engine(), store, image) is None
    tag, insides = look_inside(Engine(), store, image, log=fake.root / "log")
    assert (insides.gxx, insides.python, insides.path) == ("12.2.0", "3.12.1", "/usr/bin")
    asked = len(fake.removed)
    assert look_inside(Engine(), store, image, log=fake.root / "log") == (tag, insides)
    assert known_insides(Engine(), store, image) == (tag, insides)
    assert ["--tag" in call and tag in call for call in fake.calls()].count(True) == 1
    assert len(fake.removed) == asked == 1


def test_no_network_is_no_fault_of_the_image(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    (fake.root / "fails").write_text("#5 1.0 E: Could not connect to deb:80 (1.2.3.4)\nERROR: failed to solve: exit 1")
    error = fault(fake, store, image)
    assert error.exit_code == Exit.TOOL_MISSING
    assert "for want of network: Could not connect to deb:80" in error.sentence


def test_an_engine_that_went_away_is_said_and_not_what_buildx_said(
    fake: FakeEngine, store: Store, image: BuildImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake.root / "fails").write_text("ERROR: failed to receive status: rpc error: code = Unavailable")
    monkeypatch.setattr(Engine, "problem", lambda _: MissingToolError("the Docker engine does not answer: no socket"))
    error = fault(fake, store, image)
    assert isinstance(error, MissingToolError)
    assert error.sentence.startswith("the Docker engine went away while an image was made: ")
    assert "rpc error" not in error.sentence


def test_a_killed_runs_buildx_is_ended_first(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    tag = ensure_image(Engine(), store, image, log=fake.root / "log")
    (fake.root / "images" / tag.replace("/", "%2F").replace(":", "%3A")).unlink()
    mark = store.mark(f"image-{tag.rpartition(':')[2]}")
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        argv, env={**os.environ, JOB_VARIABLE: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()
        ensure_image(Engine(), store, image, log=fake.root / "log")
        assert left.wait(10) == -9


def test_containers_of_a_killed_run_are_ended_and_those_of_others_are_not(fake: FakeEngine, store: Store) -> None:
    fake.containers = {
        "left": {LABEL: store.mark("image-abc")},
        "at-work": {LABEL: store.mark("job")},
        "of-another-store": {LABEL: "0123456789ab/job"},
    }
    with store.lock("job"):
        assert end_abandoned(Engine(), store, LABEL) == ["left"]
    assert set(fake.containers) == {"at-work", "of-another-store"}
    assert end_abandoned(Engine(), store, LABEL) == ["at-work"]
