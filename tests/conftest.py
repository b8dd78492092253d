"""What tests share: the farm in a process of its own, environments of a cell, what must be there in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from xdist.scheduler import LoadScopeScheduling

from builder.images.engine import Engine
from builder.matrix.axes import Python
from builder.wheels.toolchain.pythons import find_python
from builder.wheels.toolchain.uv import find_uv
from tests.failures import Failures

ROOT = Path(__file__).parent.parent
#: The installed command: unlike `python -m builder` it does not see the source tree it is started in.
BUILDFARM = Path(sys.executable).with_name("buildfarm")
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
QUICK = "quick tier: unit tests and one real build; CI=true runs the tests of a change, --all every test"
CHANGE = "tests of a change; --all also runs those marked `release`"


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


def wheel_of(dist: Path) -> Path:
    """The one wheel that lies in a folder."""
    wheels = list(dist.glob("*.whl"))
    assert len(wheels) == 1, wheels
    return wheels[0]


def free_disk(volume: str = "") -> None:
    """In CI, whose disk is small: delete the images that cells ran in (5 GB each, twice: the engine keeps how it made
    them) and a volume. On a person's machine they are kept for the next time.
    """
    if not IN_CI:
        return
    images = run("docker", "images", "--quiet", "--filter=reference=buildfarm/run-*").out.split()
    wanted = [["builder", "prune"]]
    if images:
        wanted.insert(0, ["image", "rm", *images])
    if volume:
        names = run("docker", "volume", "ls", "--quiet").out.split()
        own = [name for name in names if name.partition(".")[0] == volume]
        wanted.append(["volume", "rm", volume, *own])  # which a test that failed early did not make
    for argv in wanted:
        done = run("docker", *argv, "--force")
        assert done.code == 0, done.all


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
    program = subprocess.Popen(
        [str(word) for word in argv],
        cwd=cwd,
        # Options of the tests that run now are not for the tests that a program starts.
        env={**{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = program.communicate(timeout=timeout)
    except BaseException:  # also a run of tests that is ended: what the farm started must not go on
        program.terminate()
        program.communicate()
        raise
    return Ran(program.returncode, out, err)


@pytest.fixture(scope="session")
def farm() -> Farm:
    """The installed `buildfarm`, in a process of its own."""

    def call(*words: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 3000) -> Ran:
        return run(BUILDFARM, *words, cwd=cwd, env=env, timeout=timeout)

    return call


#: The name of the folder that all workers of a run share.
STORE = "BUILDFARM_TEST_STORE"


@pytest.fixture(scope="session")
def store() -> Path:
    """One store for the whole run, so that environments are made once; BUILDFARM_TEST_STORE names another place."""
    folder = Path(os.environ[STORE])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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


#: Files whose tests use the engine, in the order one worker runs them all: there is one volume of packages and one set
#: of images. What needs most of the disk comes last.
IN_CONTAINERS = (
    "test_docker.py",
    "test_engine_storage.py",
    "test_rocky_linux.py",
    "test_cibuildwheel.py",
    "test_container_faults.py",
    "test_distributed_containers.py",
    "test_hostile_setup.py",
    "test_smoke_container.py",
    "test_cuda_images.py",
    "test_pull.py",
)
#: What is begun first, longest first. The others follow in the order they were found in, the unit tests last.
FIRST = (
    "test_torch_scatter.py",
    "test_op_gate.py",
    *IN_CONTAINERS,
    "test_tutorial.py",
    "test_workflows.py",
    "test_gate_defects.py",
    "test_main_job.py",
    "test_kill.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all` runs every test."""
    parser.addoption("--all", action="store_true", help="run every test, not only those of a tier")


def runs_everything(config: pytest.Config) -> bool:
    """Whether all tests were asked for: with `--all`, or by naming files to run."""
    return config.args_source is pytest.Config.ArgsSource.ARGS or bool(config.getoption("--all"))


def is_quick(config: pytest.Config) -> bool:
    """Whether the quick tier runs: unit tests and one real build."""
    return not IN_CI and not runs_everything(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which tier runs."""
    if runs_everything(config):
        return None
    return QUICK if is_quick(config) else CHANGE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tier, then order the tests: what takes longest starts first."""

    def is_left_out(item: pytest.Item) -> bool:
        if is_quick(config):
            return _is_integration(item) and not item.get_closest_marker("quick")
        return bool(item.get_closest_marker("release"))

    if not runs_everything(config):
        left_out = {item for item in items if is_left_out(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]

    def rank(item: pytest.Item) -> int:
        if not _is_integration(item):
            return len(FIRST) + 1
        return FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST)

    for item in items:
        assert not item.get_closest_marker("docker") or item.path.name in IN_CONTAINERS, item.nodeid
    items.sort(key=rank)


def _is_integration(item: pytest.Item) -> bool:
    return bool({"integration", "incidents"} & set(item.path.parts))


class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """What one worker of `-n` runs by itself, in order: tests in containers; incidents; an integration test's file.

    xdist's own groups are marks, which it passes on in a way that pytest 9.2 does not follow.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if "incidents" in Path(file).parts:
            return "incidents"  # they share the wheels that they build
        if "integration" not in Path(file).parts:
            return nodeid
        return "containers" if Path(file).name in IN_CONTAINERS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scopes:
    """Tell xdist; the scopes stay in the order of their tests."""
    config.option.loadscopereorder = False
    return Scopes(config, log)


_made: list[Path] = []


def pytest_configure(config: pytest.Config) -> None:
    """The run's own store, which its workers inherit: not below the tree, whose path may hold a space.

    Tests take the Pythons of the machine; those of downloads bring a mirror of their own.
    """
    os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    if IN_CI and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))
    if STORE not in os.environ and not hasattr(config, "workerinput"):
        _made.append(Path(tempfile.mkdtemp(prefix="buildfarm-test-store-")))
        os.environ[STORE] = str(_made[0])


def pytest_unconfigure() -> None:
    """Delete it."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)
        del os.environ[STORE]
