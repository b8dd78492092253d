"""A farm in small whose builds run in real containers: an index that all of them reach, and a bar before the compile.

Its torch is a few lines, so that a build takes seconds; the op gate's answer is a canned one. The rest is the farm.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
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

from builder.images.container import LABEL
from builder.images.engine import Engine
from builder.images.making import ensure_image
from builder.images.specs import Choice
from builder.matrix.compat import Compat
from builder.matrix.config import Select
from builder.matrix.declaration import read_plan
from builder.process import JOB_VARIABLE
from builder.store import Store
from tests.conftest import ROOT, Ran, needs_images
from tests.unit import loopback
from tests.unit.small_farm import BACKEND, MODULE, PROJECT, RECIPE

BASE, PYTHONS = "buildfarm-base:bookworm", "buildfarm-pythons:local"

_ANYWHERE = "00000000"

#: A package that no index has.
ABSENT = "buildfarm-nothing-of-that-name"

#: Longer than any step here takes on a busy machine, seconds.
PATIENCE = 300

#: The compile asks the index first: so a test counts compiles, and holds one for as long as it likes.
ASK = "urllib.request.urlopen(os.environ['UV_DEFAULT_INDEX'].replace('default/simple', f'bar/{NAME}')).read()"

#: The farm but for three things: the gate's answer, what it asks of the disk, the volumes it keeps packages in.
PROGRAM = """\
import sys
sys.path.append({root!r})
import builder.proofs.local, builder.wheels.container, builder.wheels.resources
from tests.unit.canned_gate import answer
builder.proofs.local.run_gate = lambda *_, **__: answer()
builder.wheels.resources.ENVIRONMENT_BYTES = builder.wheels.resources.WORK_BYTES = 0
builder.wheels.container.PACKAGES_VOLUME = {packages!r}
{patch}
from builder.__main__ import main
main()
"""

#: A docker that adds arguments to `docker create`, cibuildwheel's word for a build's container.
DOCKER = """\
#!/bin/sh
if [ "$1" = create ] && [ -n "${{CREATE-}}" ]; then
    shift
    exec {docker} create $CREATE "$@"
fi
exec {docker} "$@"
"""


class Bar:
    """What stands before something: it counts who comes, and lets nobody by while it is down."""

    def __init__(self) -> None:
        self.visits = 0
        self._up = threading.Event()
        self._up.set()
        self._news = threading.Condition()

    def pass_by(self) -> None:
        """Come to it, and wait until it is up."""
        with self._news:
            self.visits += 1
            self._news.notify_all()
        self._up.wait(PATIENCE)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Hold whoever comes while the body runs."""
        self._up.clear()
        try:
            yield
        finally:
            self._up.set()

    def await_visit(self, number: int, farm: subprocess.Popen[str] | None = None) -> None:
        """Wait until so many have come in all; fails when the farm ends before."""
        end = time.monotonic() + PATIENCE
        with self._news:
            while self.visits < number:
                if farm is not None and farm.poll() is not None:
                    raise AssertionError("\n".join(map(str, farm.communicate())))
                assert time.monotonic() < end, "nobody came"
                self._news.wait(0.5)


@dataclass
class ContainerFarm:
    """Where it stands.

    Attributes:
        root: its folder: matrix.yaml, recipes, the `docker` of its programs.
        index: its packages.
        packages: the volume of the engine that stands for uv's cache.
        compiles: where each compile comes by.
        fetches: where containers come by that fetch a wheel from the index.
        asks: where a container comes by that asks for a package the index does not have.
        cut: whether connections of containers to the index end half way.
        runs: every farm that was started.

    """

    root: Path
    index: loopback.PackageIndex
    packages: str
    compiles: Bar = field(default_factory=Bar)
    fetches: Bar = field(default_factory=Bar)
    asks: Bar = field(default_factory=Bar)
    cut: bool = False
    runs: list[subprocess.Popen[str]] = field(default_factory=list)

    def recipe(self, name: str, *, source: str = "", more: str = "") -> Path:
        """Write an extension and a matrix of it alone; returns its package's folder."""
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
        """Write matrix.yaml; `images` are the keys of its one rule of that name."""
        path = self.root / "matrix.yaml"
        path.write_text(
            f"torch: [2.11.0]\ncuda: [13.0]\npython: [3.11]\nextensions: [{', '.join(names)}]\n"
            f"torch_index: {self.index.torch_index}\nimages:\n  - {{cells: '*', {images[1:]}\n"
        )
        return path

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """What its programs get: this index and nothing else of this machine's, its own docker."""
        lost = re.compile(r"(?i)UV_|PIP_|.*_proxy$|CC$|CXX$|CUDA_HOME$")
        kept = {name: value for name, value in os.environ.items() if not lost.match(name)}
        return {
            **kept,
            "PATH": f"{self.root / 'bin'}{os.pathsep}{kept['PATH']}",
            "UV_DEFAULT_INDEX": self.index.default,
            "PIP_TRUSTED_HOST": str(urlsplit(self.index.url).hostname),
            "UV_CACHE_DIR": str(self.root / "uv-cache"),
            "UV_NO_CONFIG": "1",
            "UV_HTTP_RETRIES": "0",
            **more,
        }

    def start(self, *, store: str = "store", packages: str = "", patch: str = "", **env: str) -> subprocess.Popen[str]:
        """A farm that builds what matrix.yaml says; SIGINT means to it what a terminal's would.

        `packages` is another volume, `patch` code that runs before the farm.
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
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as a shell leaves it
        )
        self.runs.append(run)
        return run

    def end(self) -> None:
        """End the farms that a failed test left."""
        for run in self.runs:
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=PATIENCE)

    def build(self, *, store: str = "store", packages: str = "", patch: str = "", **env: str) -> Ran:
        """The same, to its end."""
        return ended(self.start(store=store, packages=packages, patch=patch, **env))

    def containers(self, store: str = "store") -> list[str]:
        """The engine's containers that are this store's, running or not."""
        own = Store(self.root / store).mark("")
        argv = [
            "docker",
            "ps",
            "--all",
            "--filter",
            f"label={LABEL}",
            "--format",
            f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}',
        ]
        lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[0] for line in lines if line.split()[1].startswith(own)]

    def processes(self, store: str = "store") -> list[int]:
        """Programs of this store's jobs, whoever their parent is."""
        mark = f"{JOB_VARIABLE}={Store(self.root / store).mark('')}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def wheels(self, store: str = "store") -> list[str]:
        """What lies in dist."""
        return sorted(path.name for path in (self.root / f"dist-{store}").glob("*.whl"))

    def in_volume(self, packages: str = "") -> list[str]:
        """Environments of builds in the volume."""
        argv = ["docker", "run", "--rm", "--volume", f"{packages or self.packages}:/it", BASE, "ls", "/it"]
        names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        return [name for name in names if name.startswith("buildfarm-") and not name.endswith(".lock")]

    def nothing_left(self, store: str = "store") -> None:
        """No container, no program, no scratch, no environment of this store."""
        assert self.containers(store) == []
        assert self.processes(store) == []
        assert [path.name for path in (self.root / store / "work").iterdir() if any(path.iterdir())] == []
        own = Store(self.root / store).mark("")[:12]
        assert [name for name in self.in_volume() if own in name] == []


def ended(farm: subprocess.Popen[str]) -> Ran:
    """A started farm's end."""
    out, err = farm.communicate(timeout=PATIENCE)
    return Ran(farm.returncode, out, err)


def bridge() -> IPv4Interface:
    """The network of containers, and the address under which they reach this machine: their default route."""
    argv = ["docker", "run", "--rm", BASE, "cat", "/proc/net/route"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    routes = {words[1]: words for words in map(str.split, lines)}
    own = next(words for target, words in routes.items() if target != _ANYWHERE)
    # The kernel prints addresses in this machine's byte order.
    gateway, mask = (IPv4Address(bytes.fromhex(text)[::-1]) for text in (routes[_ANYWHERE][2], own[7]))
    return IPv4Interface(f"{gateway}/{mask}")


def _index(farm: ContainerFarm) -> None:
    """What a build of this torch asks of an index; most of it is empty, for nothing here uses it."""
    default = farm.index.root / "default"
    libraries = loopback.torch_libraries(farm.root / "torch-lib")
    farm.index.add_torch("2.11.0", "13.0", libraries=libraries)
    for project in ("ninja", "setuptools", "wheel", "numpy", "pip"):
        farm.index.add(project, "80.0")
    loopback.pure_wheel(default, "cuda_toolkit", "13.0.2", requires=["nvidia-cuda-nvcc==13.0.88"])
    for project in ("nvidia_cuda_crt", "nvidia_nvvm"):
        loopback.pure_wheel(default, project, "13.0.88")
    files = {"nvidia/cu13/bin/nvcc": "", "nvidia/cu13/lib/libcudart.so.13": ""}
    loopback.pure_wheel(default, "nvidia_cuda_nvcc", "13.0.88", files)


def _make_image(farm: ContainerFarm) -> None:
    """The image of its builds, with this machine's own index and not the farm's."""
    farm.recipe("image")
    matrix, _, plan = read_plan(farm.matrix("image"), Select())
    image = Choice(matrix, Compat.load(), {}).build_image(plan.builds[0])
    ensure_image(Engine(), Store(farm.root / "image-store"), image, log=farm.root / "image-log")


@contextlib.contextmanager
def container_farm(root: Path, name: str) -> Iterator[ContainerFarm]:
    """A farm under `root`; its volume, called by `name`, is deleted afterwards."""
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
                farm.compiles.pass_by()
                self.path = packages.default.removeprefix(packages.url) + "/wheel/"  # an answer, whatever
            elif inside and self.path.endswith(".whl"):
                farm.fetches.pass_by()
            elif inside and ABSENT in self.path:
                farm.asks.pass_by()
            with contextlib.suppress(OSError):  # who asked was killed while it waited
                if farm.cut and inside:
                    if self.path.endswith(".whl"):
                        whole = (packages.root / self.path.lstrip("/")).read_bytes()
                        self.send_response(200)
                        self.send_header("Content-Length", str(len(whole)))
                        self.end_headers()
                        self.wfile.write(whole[: len(whole) // 2])
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    super().do_GET()

    server = ThreadingHTTPServer((str(here.ip), 0), Handler)
    packages.url = f"http://{here.ip}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    _index(farm)
    (root / "bin").mkdir()
    (root / "bin/docker").write_text(DOCKER.format(docker=shutil.which("docker")))
    (root / "bin/docker").chmod(0o755)
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
        subprocess.run(["docker", "volume", "rm", "--force", name], capture_output=True, check=True)
