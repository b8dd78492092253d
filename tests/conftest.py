"""What tests share: the farm in a process of its own, environments of a cell, what must be there in CI."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from builder.images.engine import Engine
from builder.matrix.axes import Python
from builder.wheels.pythons import find_python, find_uv

ROOT = Path(__file__).parent.parent
#: The installed command: unlike `python -m builder` it does not see the source tree it is started in.
BUILDFARM = Path(sys.executable).with_name("buildfarm")
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}


def lacking(what: str) -> NoReturn:
    """A missing tool: an error where everything has to be proven, a skip with its reason on a person's machine."""
    if IN_CI:
        pytest.fail(f"{what}; in CI nothing is skipped")
    pytest.skip(what)


def needs_images(*images: str) -> None:
    """Docker with buildx and these images, or what `lacking` makes of it."""
    engine = Engine()
    if problem := engine.problem():
        lacking(str(problem))
    for image in images:
        if engine.image_id(image) is None:
            lacking(f"{image} is not there; `tests/images/make-base {image}` makes it")


@dataclass(frozen=True)
class Ran:
    """A finished program."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        """Everything it said."""
        return self.out + self.err


Farm = Callable[..., Ran]


def run(*argv: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 3000) -> Ran:
    """Run a program to its end."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def farm() -> Farm:
    """The installed `buildfarm`, in a process of its own."""

    def call(*words: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 3000) -> Ran:
        return run(BUILDFARM, *words, cwd=cwd, env=env, timeout=timeout)

    return call


@cache
def _store() -> Path:
    """BUILDFARM_TEST_STORE, or a folder of this run's own: not below the tree, whose path may hold a space."""
    chosen = os.environ.get("BUILDFARM_TEST_STORE")
    folder = Path(chosen or tempfile.mkdtemp(prefix="buildfarm-test-store-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _background() -> Path:
    return _store() / "background dist"


@pytest.fixture(scope="session")
def store() -> Path:
    """One store for the whole run, so that environments are made once; BUILDFARM_TEST_STORE names another place."""
    return _store()


@pytest.fixture(scope="session")
def python_of() -> Callable[[str], Path]:
    """The interpreter of a Python version."""

    def find(version: str) -> Path:
        found = find_python(Python.parse(version))
        if found is None:
            lacking(f"no Python {version} on this machine")
        assert found is not None
        return found.path

    return find


@contextmanager
def _environments(root: Path) -> Iterator[Callable[..., Path]]:
    """Fresh environments by uv, deleted afterwards (a torch is 4 GB, though linked from uv's cache)."""
    made: list[Path] = []

    def make(interpreter: Path, *requirements: str) -> Path:
        folder = root / f"env{len(made)}"
        made.append(folder)
        for words in (
            ("venv", "--python", str(interpreter), str(folder)),
            ("pip", "install", "--python", str(folder / "bin/python"), *requirements),
        ):
            if words[0] == "pip" and not requirements:
                continue
            done = run(find_uv(), *words)
            assert done.code == 0, done.err
        return folder / "bin" / "python"

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def venv(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes an environment with these requirements; it lives as long as the test."""
    with _environments(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def venv_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """The same, for the tests of one module together."""
    with _environments(tmp_path_factory.mktemp("environments")) as make:
        yield make


#: torch-scatter compiles one file at a time (its setup.py switches ninja off), so a run that wants it starts it first
#: and looks at it last: the second core is its.
BACKGROUND = {
    "torch_scatter": (
        "--torch",
        "2.11",
        "--cuda",
        "13.0",
        "--python",
        "3.12",
        "--ext",
        "torch_scatter",
        "--arch",
        "9.0",
    )
}

_started: dict[str, subprocess.Popen[str]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs in the background is looked at last."""
    items.sort(key=lambda item: any(f"test_{name}.py" in item.nodeid for name in BACKGROUND))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the long builds that some selected test will wait for."""
    if session.config.option.collectonly:
        return
    for name, words in BACKGROUND.items():
        if any(f"test_{name}.py" in item.nodeid for item in session.items):
            dist = _background()
            shutil.rmtree(dist, ignore_errors=True)
            argv = [str(BUILDFARM), "build", *words, "--executor", "local", "--jobs", "1"]
            _started[name] = subprocess.Popen(
                [*argv, "--store", str(_store()), "--dist", str(dist)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )


def pytest_sessionfinish() -> None:
    """A run that ends early takes its background builds along."""
    for farm in _started.values():
        if farm.poll() is None:
            farm.send_signal(signal.SIGINT)
            farm.communicate(timeout=60)
    if _store.cache_info().currsize and "BUILDFARM_TEST_STORE" not in os.environ:
        shutil.rmtree(_store(), ignore_errors=True)


@pytest.fixture(scope="session")
def started() -> Callable[[str], subprocess.Popen[str]]:
    """The background build of that name."""
    return _started.__getitem__


@pytest.fixture(scope="session")
def in_background() -> Path:
    """Where background builds put their dist folder."""
    return _background()
