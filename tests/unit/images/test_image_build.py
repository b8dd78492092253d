"""Builds of images with a fake engine: caching, failures, and leftovers of killed runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from builder.errors import BuildError, BuildfarmError, Code, Exit, MissingToolError
from builder.images import dockerfiles as render
from builder.images.base_image_choice import ImageChooser
from builder.images.engine import Engine
from builder.images.image_build import cached_contents, ensure_image, image_name, inspect_image
from builder.images.specs import BuildImage
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule
from builder.process import OWNER_VARIABLE
from builder.store import Store
from tests.conftest import PATIENCE
from tests.unit.images.fake_engine import FakeEngine, running_engine
from tests.unit.matrix.make import matrix
from tests.unit.wheels.make_record import build_for

CELL = Cell.parse("torch2.11.0-cu130-cp312")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    (tmp_path / "engine").mkdir()
    with running_engine(tmp_path / "engine", monkeypatch) as engine:
        engine.add_image("base:bookworm", "sha256:base")
        engine.add_image("pythons:1", "sha256:pythons")
        engine.container_output = "gxx=12.2.0\nnvcc=\npython=3.12.1\npath=/usr/bin\n"
        yield engine


def chooser() -> ImageChooser:
    rules = (ImageRule("*", "base:bookworm", "pythons:1"),)
    return ImageChooser(replace(matrix(["2.11"], ["13.0"], ["3.12"]), images=rules), Compat.load(), {})


@pytest.fixture
def image() -> BuildImage:
    return chooser().build_image(build_for(CELL))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def build_error(fake: FakeEngine, store: Store, image: BuildImage) -> BuildfarmError:
    with pytest.raises(BuildfarmError) as caught:
        ensure_image(Engine(), store, image, log=fake.root / "log")
    return caught.value


def test_an_image_is_built_once_and_inspected_once(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    assert cached_contents(Engine(), store, image) is None
    tag, contents = inspect_image(Engine(), store, image, log=fake.root / "log")
    assert (contents.gxx, contents.python, contents.path) == ("12.2.0", "3.12.1", "/usr/bin")
    asked = len(fake.removed)
    assert inspect_image(Engine(), store, image, log=fake.root / "log") == (tag, contents)
    assert cached_contents(Engine(), store, image) == (tag, contents)
    assert ["--tag" in call and tag in call for call in fake.calls()].count(True) == 1
    assert len(fake.removed) == asked == 1


@pytest.mark.parametrize("name", sorted(path.name for path in render.template_dir().iterdir()))
def test_a_changed_template_changes_the_name_of_its_images(
    name: str, image: BuildImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's name is part of the toolchain, and the toolchain is part of the build digest."""
    images = {one.template: one for one in (image, chooser().runtime_image(CELL))}
    copy = shutil.copytree(render.template_dir(), tmp_path / "templates")
    monkeypatch.setattr(render, "template_dir", lambda: copy)
    render._environment.cache_clear()
    try:
        old = {template: image_name(image, ["sha256:base"]) for template, image in images.items()}
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace("RUN ", "RUN true && "))
        render._environment.cache_clear()
        new = {template: image_name(image, ["sha256:base"]) for template, image in images.items()}
    finally:
        render._environment.cache_clear()
    users = {name} if name in old else set(old)  # the stages are part of every image
    assert {template for template in old if old[template] != new[template]} == users


def test_base_images_of_a_mirror_change_the_dockerfile_and_not_the_name_of_the_image(
    fake: FakeEngine, store: Store, image: BuildImage
) -> None:
    expected = image_name(image, [Engine().base_id(base) for base in image.bases])
    original = {base: (fake.root / "images" / quote(base, safe="")) for base in image.bases}
    for base, file in original.items():
        file.rename(file.with_name(quote(f"mirror.example/library/{base}", safe="")))
    engine = Engine({"docker.io": "mirror.example"}, may_pull=False)
    assert ensure_image(engine, store, image, log=fake.root / "log") == expected
    froms = re.findall(r"^FROM (\S+)", (fake.root / "Dockerfile").read_text(), re.MULTILINE)
    assert set(froms) == {f"mirror.example/library/{base}" for base in image.bases}
    tag, _ = inspect_image(engine, store, image, log=fake.root / "log")
    assert cached_contents(engine, store, image) is not None
    assert tag == expected


def test_the_error_of_a_failed_image(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    (fake.root / "fails").write_text("#5 1.0 E: Could not connect to deb:80 (1.2.3.4)\nERROR: failed to solve: exit 1")
    error = build_error(fake, store, image)
    assert error.exit_code == Exit.TOOL_MISSING
    assert "because the network cannot be reached: Could not connect to deb:80" in error.sentence
    (fake.root / "fails").write_text("#7 1.23 ERROR: No matching distribution found for uv==9\n#7 DONE\n")
    error = build_error(fake, store, image)
    assert isinstance(error, BuildError)
    assert (error.stage, error.log, error.code) == ("environment", fake.root / "log", Code.ENVIRONMENT_FAILED)


def test_a_stopped_engine_is_reported_instead_of_the_output_of_buildx(
    fake: FakeEngine, store: Store, image: BuildImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake.root / "fails").write_text("ERROR: failed to receive status: rpc error: code = Unavailable")
    monkeypatch.setattr(
        Engine,
        "problem",
        lambda _: MissingToolError("the Docker engine does not answer: no socket", Code.ENGINE_NOT_ANSWERING),
    )
    error = build_error(fake, store, image)
    assert isinstance(error, MissingToolError)
    assert error.sentence.startswith("the Docker engine stopped answering while an image was built: ")
    assert "rpc error" not in error.sentence


def test_a_build_that_does_not_end_is_ended(
    fake: FakeEngine, store: Store, image: BuildImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.images.engine.BUILD_TIMEOUT", 1)
    (fake.root / "hangs").touch()
    error = build_error(fake, store, image)
    assert isinstance(error, MissingToolError)
    assert "because buildx was ended: it did not finish within 1 s" in error.sentence
    assert "restart the Docker engine, and run the command again" in error.hints


def test_the_buildx_of_a_killed_run_is_killed_first(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    tag = ensure_image(Engine(), store, image, log=fake.root / "log")
    (fake.root / "images" / tag.replace("/", "%2F").replace(":", "%3A")).unlink()
    owner = store.owner(f"image-{tag.rpartition(':')[2]}")
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        argv, env={**os.environ, OWNER_VARIABLE: owner}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()  # it has its environment
        ensure_image(Engine(), store, image, log=fake.root / "log")
        assert left.wait(PATIENCE) == -9
