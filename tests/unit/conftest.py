"""What the unit tests share: an index of their own, and a machine without CUDA."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder import log
from builder.__main__ import run_command
from builder.store import Store
from builder.wheels.toolchain import machine
from tests.conftest import lacking
from tests.unit import loopback
from tests.unit.images.fake_engine import FakeEngine, running_engine
from tests.unit.loopback import PYTHON
from tests.unit.transcripts import forget_machine

#: Runs buildfarm in this process with these words; returns the exit code, stdout and stderr.
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["buildfarm", *map(str, words)])
        monkeypatch.setattr("builder.log._printed", [])
        code = run_command()
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def refusing_compilers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compilers that refuse every call."""
    folder = tmp_path_factory.mktemp("refusing-compilers")
    for name in ("cc", "c++", "gcc", "g++"):
        program = folder / name
        program.write_text("#!/bin/sh\necho 'tests/unit calls no compiler; move the test to tests/real' >&2\nexit 97\n")
        program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_compiler(refusing_compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that calls a compiler fails, also on a machine that has one."""
    monkeypatch.setenv("PATH", str(refusing_compilers), prepend=os.pathsep)


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uv's cache, the same for all tests of a run."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture(scope="module")
def headers() -> None:
    """Python.h of the Python these tests run under: classic extensions are compiled against it."""
    found = machine.find_python(PYTHON)
    if found is None or not found.headers:
        lacking(f"this Python {PYTHON} has no headers (Debian: python3-dev)")


@pytest.fixture
def index(tmp_path: Path, uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[loopback.PackageIndex]:
    """An empty package index, the only one uv knows of."""
    with loopback.served(tmp_path / "index") as served:
        loopback.only(served, uv_cache, monkeypatch)
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """A fake container engine."""
    (tmp_path / "engine").mkdir()
    with running_engine(tmp_path / "engine", monkeypatch) as engine:
        yield engine


@pytest.fixture
def fresh_eyes() -> Iterator[None]:
    """Look at the machine anew: what was found once is kept for a process's life."""
    forget_machine()
    yield
    forget_machine()


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The messages of all threads, as a stream that is not a terminal."""
    stream = io.StringIO()
    for name in ("FORCE_COLOR",):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(log.console, "_file", stream)
    return stream
