"""A small project whose builds run in real containers: with its own package index, and a barrier before the compile.

Its torch has a few lines, so that a build takes seconds, and the result of the op gate is fixed. The rest is real.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from urllib.parse import urlsplit

from builder.images.chooser import ImageChooser
from builder.images.container import OWNER_LABEL
from builder.images.engine import Engine
from builder.images.image_build import ensure_image
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.process import OWNER_VARIABLE
from builder.store import Store
from tests.conftest import ROOT, Ran, needs_images
from tests.unit import loopback
from tests.unit.small_project import BACKEND, MODULE, PROJECT, RECIPE

BASE, PYTHONS = "buildfarm-base:bookworm", "buildfarm-pythons:local"

_ANYWHERE = "00000000"

#: Name of a package that does not exist.
ABSENT = "buildfarm-nothing-of-that-name"

#: Longer than any step takes on a busy machine, seconds.
PATIENCE = 900

#: Each compile first sends a request to the index, so that tests can count compiles and hold them.
ASK = "urllib.request.urlopen(os.environ['UV_DEFAULT_INDEX'].replace('default/simple', f'bar/{NAME}')).read()"

#: buildfarm with three changes: the gate's result, the required disk space and the volumes.
PROGRAM = """\
import sys
sys.path.append({root!r})
import builder.proofs.cells.local, builder.wheels.cibuildwheel.config, builder.resources
from tests.unit.canned_gate import answer
builder.proofs.cells.local.run_gate = lambda *_, **__: answer()
builder.resources.ENVIRONMENT_BYTES = builder.resources.WORK_BYTES = 0
builder.wheels.cibuildwheel.config.PACKAGES_VOLUME = {packages!r}
builder.wheels.cibuildwheel.config.OBJECTS_VOLUME = {packages!r} + "-objects"
{patch}
from builder.__main__ import main
main()
"""


class Barrier:
    """Counts requests, and holds them while it is closed."""

    def __init__(self) -> None:
        self.arrivals = 0
        self._open = threading.Event()
        self._open.set()
        self._changed = threading.Condition()

    def wait(self) -> None:
        """Count one request, and wait until the barrier is open."""
        with self._changed:
            self.arrivals += 1
            self._changed.notify_all()
        self._open.wait(PATIENCE)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Hold requests while the body runs."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def await_arrival(self, number: int, farm: subprocess.Popen[str] | None = None) -> None:
        """Wait until this many requests have arrived in total; fails when buildfarm exits before."""
        end = time.monotonic() + PATIENCE
        with self._changed:
            while self.arrivals < number:
                if farm is not None and farm.poll() is not None:
                    raise AssertionError("\n".join(map(str, farm.communicate())))
                assert time.monotonic() < end, "no request arrived"
                self._changed.wait(0.5)


@dataclass
class ContainerFarm:
    """The project, its index and its runs.

    Attributes:
        root: directory with matrix.yaml and recipes.
        index: the package index.
        packages: name of the engine volume with uv's cache.
        compiles: the barrier before each compile.
        fetches: the barrier before containers download a wheel.
        lookups: the barrier before containers look up the package that does not exist.
        cut: whether connections of containers to the index break.
        runs: all processes of buildfarm that were started.

    """

    root: Path
    index: loopback.PackageIndex
    packages: str
    compiles: Barrier = field(default_factory=Barrier)
    fetches: Barrier = field(default_factory=Barrier)
    lookups: Barrier = field(default_factory=Barrier)
    cut: bool = False
    runs: list[subprocess.Popen[str]] = field(default_factory=list)

    def recipe(self, name: str, *, source: str = "", more: str = "") -> Path:
        """Write an extension and a matrix with this extension only; returns the directory of its package."""
        package = self.root / name / "src" / name
        package.mkdir(parents=True)
        (self.root / name / "extension.yaml").write_text(RECIPE.format(name=name, cuda="optional", more=more))
        (package.parent / "pyproject.toml").write_text(PROJECT)
        first = "    if subprocess.run("
        assert first in BACKEND
        backend = BACKEND.replace(first, f"    import urllib.request\n    {ASK}\n{first}")
        (package.parent / "backend.py").write_text(backend)
        (package.parent / "PKG").write_text(f"{name} 1.0")
        (package / "__init__.py").write_text("from ._C import answer\n")
        (package / "_C.c").write_text(source or MODULE.format(answer=42))
        self.matrix(name)
        return package

    def matrix(self, *names: str, images: str = f"{{image: {BASE}, pythons: {PYTHONS}}}") -> Path:
        """Write matrix.yaml; `images` are the keys of the one rule under `images:`."""
        path = self.root / "matrix.yaml"
        path.write_text(
            f"torch: [2.11.0]\ncuda: [13.0]\npython: [3.11]\nextensions: [{', '.join(names)}]\n"
            f"torch_index: {self.index.torch_index}\nimages:\n  - {{cells: '*', {images[1:]}\n"
        )
        return path

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of buildfarm: with this index only."""
        lost = re.compile(r"(?i)UV_|PIP_|.*_proxy$|CC$|CXX$|CUDA_HOME$")
        kept = {name: value for name, value in os.environ.items() if not lost.match(name)}
        return {
            **kept,
            "UV_DEFAULT_INDEX": self.index.default,
            "PIP_TRUSTED_HOST": str(urlsplit(self.index.url).hostname),
            "UV_CACHE_DIR": str(self.root / "uv-cache"),
            "UV_NO_CONFIG": "1",
            "UV_HTTP_RETRIES": "0",
            **more,
        }

    def start(self, *, store: str = "store", packages: str = "", patch: str = "", **env: str) -> subprocess.Popen[str]:
        """Start buildfarm; SIGINT has the effect that it has in a terminal.

        `packages` is a different volume, `patch` is code that runs before buildfarm.
        """
        program = PROGRAM.format(root=str(ROOT), packages=packages or self.packages, patch=patch)
        words = ["build", "--executor", "docker", "--store", str(self.root / store)]
        run = subprocess.Popen(
            [sys.executable, "-c", program, *words, "--dist", str(self.root / f"dist-{store}")],
            cwd=self.root,
            env=self.environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as in a shell
        )
        self.runs.append(run)
        return run

    def end(self) -> None:
        """Terminate the processes that a failed test left running."""
        for run in self.runs:
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=PATIENCE)

    def build(self, *, store: str = "store", packages: str = "", patch: str = "", **env: str) -> Ran:
        """Run buildfarm to its end."""
        return ended(self.start(store=store, packages=packages, patch=patch, **env))

    def containers(self, store: str = "store") -> list[str]:
        """Ids of this store's containers, running or not."""
        own = Store(self.root / store).owner("")
        argv = [
            "docker",
            "ps",
            "--all",
            "--filter",
            f"label={OWNER_LABEL}",
            "--format",
            f'{{{{.ID}}}} {{{{.Label "{OWNER_LABEL}"}}}}',
        ]
        lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[0] for line in lines if line.split()[1].startswith(own)]

    def processes(self, store: str = "store") -> list[int]:
        """Ids of all processes of this store's jobs."""
        mark = f"{OWNER_VARIABLE}={Store(self.root / store).owner('')}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def wheels(self, store: str = "store") -> list[str]:
        """Names of the wheels in dist."""
        return sorted(path.name for path in (self.root / f"dist-{store}").glob("*.whl"))

    def in_volume(self, packages: str = "") -> list[str]:
        """Names of build environments in the volume."""
        argv = ["docker", "run", "--rm", "--volume", f"{packages or self.packages}:/it", BASE, "ls", "/it"]
        names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        return [name for name in names if name.startswith("buildfarm-") and not name.endswith(".lock")]

    def nothing_left(self, store: str = "store") -> None:
        """This store has no container, no process, no temporary file and no environment."""
        assert self.containers(store) == []
        assert self.processes(store) == []
        assert [path.name for path in (self.root / store / "work").iterdir() if any(path.iterdir())] == []
        own = Store(self.root / store).owner("")[:12]
        assert [name for name in self.in_volume() if own in name] == []


def ended(farm: subprocess.Popen[str]) -> Ran:
    """The result of a started process, after its end."""
    out, err = farm.communicate(timeout=PATIENCE)
    return Ran(farm.returncode, out, err)


def bridge() -> IPv4Interface:
    """The network of containers, and the address at which they reach this machine: their default route."""
    argv = ["docker", "run", "--rm", BASE, "cat", "/proc/net/route"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    routes = {words[1]: words for words in map(str.split, lines)}
    own = next(words for target, words in routes.items() if target != _ANYWHERE)
    # The kernel prints addresses in the machine's byte order.
    gateway, mask = (IPv4Address(bytes.fromhex(text)[::-1]) for text in (routes[_ANYWHERE][2], own[7]))
    return IPv4Interface(f"{gateway}/{mask}")


def _index(farm: ContainerFarm) -> None:
    """Add the packages that a build needs; most are empty because the build does not use them."""
    libraries = loopback.torch_libraries(farm.root / "torch-lib")
    farm.index.add_torch("2.11.0", "13.0", libraries=libraries)
    for project in ("ninja", "setuptools", "wheel", "numpy", "pip"):
        farm.index.add(project, "80.0")
    add_toolkit(farm.index)


def add_toolkit(index: loopback.PackageIndex) -> None:
    """Add the packages of a CUDA toolkit without programs."""
    default = index.root / "default"
    loopback.pure_wheel(default, "cuda_toolkit", "13.0.2", requires=["nvidia-cuda-nvcc==13.0.88"])
    for project in ("nvidia_cuda_crt", "nvidia_nvvm"):
        loopback.pure_wheel(default, project, "13.0.88")
    files = {"nvidia/cu13/bin/nvcc": "", "nvidia/cu13/lib/libcudart.so.13": ""}
    loopback.pure_wheel(default, "nvidia_cuda_nvcc", "13.0.88", files)


def _make_image(farm: ContainerFarm) -> None:
    """Build the image of the builds, with the real package index of this machine."""
    farm.recipe("image")
    matrix, _, plan = read_plan(farm.matrix("image"), Selection())
    image = ImageChooser(matrix, Compat.load(), {}).build_image(plan.builds[0])
    ensure_image(Engine(), Store(farm.root / "image-store"), image, log=farm.root / "image-log")


@contextlib.contextmanager
def container_farm(root: Path, name: str) -> Iterator[ContainerFarm]:
    """A project under `root`; its volume `name` is deleted afterwards."""
    needs_images(BASE, PYTHONS)
    packages = loopback.PackageIndex(root / "index")
    farm = ContainerFarm(root, packages, name)
    here = bridge()

    class Handler(loopback.Handler):
        index = packages

        def do_GET(self) -> None:  # noqa: N802 - the name is http.server's
            client = IPv4Address(self.client_address[0])
            inside = client in here.network and client != here.ip
            if self.path.startswith("/bar/"):
                farm.compiles.wait()
                self.path = packages.default.removeprefix(packages.url) + "/wheel/"  # any answer
            elif inside and self.path.endswith(".whl"):
                farm.fetches.wait()
            elif inside and ABSENT in self.path:
                farm.lookups.wait()
            with contextlib.suppress(OSError):  # the client was killed while it waited
                if farm.cut and inside:
                    if self.path.endswith(".whl"):
                        content = (packages.root / self.path.lstrip("/")).read_bytes()
                        self.send_response(200)
                        self.send_header("Content-Length", str(len(content)))
                        self.end_headers()
                        self.wfile.write(content[: len(content) // 2])
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    super().do_GET()

    server = ThreadingHTTPServer((str(here.ip), 0), Handler)
    packages.url = f"http://{here.ip}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    _index(farm)
    thread.start()
    _make_image(farm)
    try:
        yield farm
    finally:
        farm.end()
        server.shutdown()
        server.server_close()
        thread.join()
        for store in root.glob("*/locks"):
            for container in farm.containers(store.parent.name):
                subprocess.run(["docker", "rm", "--force", "--volumes", container], capture_output=True, check=True)
        names = subprocess.run(["docker", "volume", "ls", "--quiet"], capture_output=True, text=True, check=True).stdout
        own = [each for each in names.split() if each.startswith((f"{name}.", f"{name}-objects."))]
        subprocess.run(["docker", "volume", "rm", "--force", *own, name], capture_output=True, check=True)
