"""The shared compiler cache with a real Redis: two stores, and what happens when Redis is gone or refuses."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.matrix.config import Recipe
from builder.wheels.sccache import configure
from builder.wheels.sccache.configure import find_sccache
from tests.conftest import lacking
from tests.fixtures.redis_server import Compiled, Redis, compile_in, running_redis
from tests.full.test_object_cache import HOST, KERNEL, TORCH_SETUP
from tests.unit.matrix import make
from tests.unit.wheels.make_record import build_for

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: One of toy.cpp; for kernel.cu cudafe++, cicc, ptxas and the host compiler.
STEPS = 5

PASSWORD = "open sesame"

#: The setup.py of this extension writes down its environment.
SETUP = "import os\nprint('TOLD', sorted(os.environ.items()))\n" + TORCH_SETUP.format(ninja=True)


@pytest.fixture(scope="module")
def second_store() -> Iterator[Path]:
    """A store at a path of another length, as on another machine."""
    with tempfile.TemporaryDirectory(prefix="the-store-of-a-second-worker-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def needed() -> None:
    if find_sccache() is None:
        lacking("no sccache 0.10 or later beside buildfarm's Python or on PATH")
    if shutil.which("redis-server") is None:
        lacking("there is no redis-server; `tests/fixtures/install-redis` installs it on Debian")
    configure._warn_once.cache_clear()


def compiled(store: Path, name: str = "toy") -> Compiled:
    build = build_for("torch2.11.0-cu130-cp312", name)
    recipe: Recipe = replace(make.recipe(name), build_requires=("setuptools>=77", "wheel", "ninja"))

    def write(source: Path) -> None:
        source.mkdir()
        files = {"setup.py": SETUP, "value.h": "#define VALUE 1\n", "kernel.cu": KERNEL, "toy.cpp": HOST}
        for file, text in files.items():
            (source / file).write_text(text)

    return compile_in(store, build, recipe, write)


def share(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in [name for name in os.environ if name.startswith("SCCACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SCCACHE_REDIS_ENDPOINT", url)


def with_password(redis: Redis, password: str) -> str:
    return redis.url.replace("//", f"//:{password.replace(' ', '%20')}@")


def test_a_second_store_takes_every_object_from_redis(
    store: Path, second_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_redis(PASSWORD) as redis:
        share(monkeypatch, with_password(redis, PASSWORD))
        first = compiled(store)
        assert (first.objects.reused, first.objects.compiled) == (0, STEPS)
        assert {key.split("/")[:2] == ["buildfarm", "toy"] for key in redis.stored()} == {True}
        second = compiled(second_store)
        assert (second.objects.reused, second.objects.compiled) == (STEPS, 0)
        assert second.wheel == first.wheel
        assert second.cpu < first.cpu
        other = compiled(second_store, "toy_two")
        assert other.objects.reused == 0, "objects of another extension are not found"
    assert "TOLD" in first.log
    for text in (first.log, second.log, capsys.readouterr().err):
        assert "sesame" not in text
        assert "SCCACHE_REDIS" not in text, "code of the source gets no variables of Redis"


def test_without_redis_a_build_succeeds_with_one_warning(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody listens
        share(monkeypatch, f"redis://127.0.0.1:{nobody.getsockname()[1]}")
        for _ in range(2):
            done = compiled(store)
            assert done.objects.compiled == STEPS
            assert not done.objects.refused, "the cache on this disk is used"
    said = capsys.readouterr().err
    assert said.count("the shared compiler cache is not used, and objects stay on this machine: sccache: ") == 1


def test_a_wrong_password_is_one_sentence_and_the_build_succeeds(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_redis(PASSWORD) as redis:
        share(monkeypatch, with_password(redis, "wrong one"))
        done = compiled(store)
        assert done.objects.compiled == STEPS
        assert redis.stored() == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "the shared compiler cache is not used" in said
    assert "wrong one" not in said + done.log
