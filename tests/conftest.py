"""What tests share: the farm in a process of its own, environments of a cell, what must be there in CI."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psutil
import pytest

from builder.errors import BuildfarmError, Code
from builder.images.engine import Engine
from builder.matrix.axes import Python
from builder.process import OWNER_VARIABLE
from builder.wheels.toolchain.machine import find_python
from builder.wheels.toolchain.uv import find_uv
from tests.plugins import EngineLock, Failures

if TYPE_CHECKING:
    from tests.images.registry import LocalRegistry

os.environ.pop("COLUMNS", None)  # xdist sets it, and the width of printed lines depends on it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; programs would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).parent.parent
#: The installed command: unlike `python -m builder` it does not see the source tree it is started in.
BUILDFARM = Path(sys.executable).with_name("buildfarm")
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}


def lacking(what: str) -> NoReturn:
    """A missing tool: an error where everything has to be proven, a skip with its reason on a person's machine."""
    if IN_CI:
        pytest.fail(f"{what}; in CI nothing is skipped")
    pytest.skip(what)


def coded(code: Code) -> Callable[[BaseException], bool]:
    """For `check` of pytest.raises: whether an error has this code. The transcripts have the texts."""
    return lambda error: isinstance(error, BuildfarmError) and error.code is code


def cell_python() -> Python:
    """The Python of cells with a real torch: one for all tests, which share its torch and torch's bytecode."""
    shared = Python(3, 12)
    return shared if find_python(shared) else Python(*sys.version_info[:2])


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
        run("docker", *argv, "--force").ok()


#: Seconds for what must happen, also on a slow machine under load. Only a test that fails waits so long.
PATIENCE = 300.0


def wait_until(condition: Callable[[], object], what: str | Callable[[], str], seconds: float = PATIENCE) -> None:
    """Wait for a state; the test fails with `what` when it does not come. A function for `what` is called then."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s: not {what if isinstance(what, str) else what()}")
        time.sleep(0.01)


def is_running(process: psutil.Process) -> bool:
    """Whether a process runs: it has not ended, and no other process has its number."""
    try:
        return process.is_running() and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def owned(owner: str) -> list[int]:
    """The processes with this owner in their environment. `STORE/` stands for all owners of a store."""
    mark, found = f"{OWNER_VARIABLE}={owner}".encode(), []
    end = b"" if owner.endswith("/") else b"\0"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if b"\0" + mark + end in b"\0" + (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


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

    def ok(self) -> Ran:
        """Assert that it succeeded, and return it."""
        assert self.code == 0, self.all
        return self


Farm = Callable[..., Ran]


def in_foreground() -> None:
    """For `preexec_fn`: the program can be interrupted, also if the tests were started in the background.

    A shell starts background jobs with SIGINT ignored, and programs inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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
        print(*program.communicate(), sep="\n")  # the report of the test says what it did until then
        raise
    return Ran(program.returncode, out, err)


def git(folder: Path, *words: str) -> str:
    """What git prints in this folder; its commits have an author."""
    options = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", "-C", folder, *options, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(folder: Path, *, files: bool = True) -> str:
    """Make a folder a repository, or add a commit: of its files or of none; returns the hash."""
    for words in (
        ["init", "-q", "-b", "main"],
        *([["add", "."]] if files else []),
        ["commit", "-q", "--allow-empty", "-mx"],
    ):
        git(folder, *words)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="session", autouse=True)
def _no_sync() -> Iterator[None]:
    """No test outlives a loss of power; to sync thousands of small files takes minutes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        patched.setattr("builder.wheels.toolchain.environments.sync_file_system", lambda _: None)
        yield


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
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """One registry with the images of CUDA 12.1 for the whole run: to fill it takes a minute."""
    from tests.images.registry import running_cuda_registry

    with running_cuda_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


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


@pytest.fixture
def venv(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes environments by uv, deleted after the test (a torch is 4 GB, though linked from uv's cache)."""
    made: list[Path] = []

    def make(interpreter: Path, *requirements: str) -> Path:
        folder = tmp_path / f"env{len(made)}"
        made.append(folder)
        run(find_uv(), "venv", "--python", interpreter, folder).ok()
        if requirements:
            run(find_uv(), "pip", "install", "--python", folder / "bin/python", *requirements).ok()
        return folder / "bin" / "python"

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


_made: list[Path] = []


def pytest_configure(config: pytest.Config) -> None:
    """The run's own store, which its workers inherit: not below the tree, whose path may hold a space.

    Tests take the Pythons of the machine; those of downloads bring a mirror of their own. nox names its environment in
    UV_PYTHON, which uv prefers to the environment that a test activates.
    """
    os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    for name in ("UV_PYTHON", "UV_PROJECT_ENVIRONMENT"):
        os.environ.pop(name, None)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(EngineLock())
        if IN_CI:
            config.pluginmanager.register(Failures(config))
    if STORE not in os.environ and not hasattr(config, "workerinput"):
        _made.append(Path(tempfile.mkdtemp(prefix="buildfarm-test-store-")))
        os.environ[STORE] = str(_made[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The main job downloads torch and a toolkit; meanwhile, the other worker has tests that need neither."""
    items.sort(key=lambda item: item.path.name != "test_main_job.py")


def pytest_unconfigure() -> None:
    """Delete it."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)
        del os.environ[STORE]
