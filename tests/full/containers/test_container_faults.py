"""Failures of containers, of builds and cells: each gives an error or a reason and leaves nothing for the next run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from builder.commands.targets import TargetFinder
from builder.images.container import OWNER_LABEL, ContainerSpec
from builder.images.engine import Engine
from builder.images.specs import ImageChooser
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.proof import Check, Verdict
from builder.proofs.cells import container as container_module
from builder.proofs.cells.cell_run import CellRunner
from builder.proofs.cells.container import ContainerEnvironments
from builder.resources import Resources
from builder.store import Store
from builder.wheels.toolchain.environments import Environments
from tests.conftest import BUILDFARM, ROOT, in_foreground, needs_images, wait_until
from tests.fixtures.container_farm import (
    ABSENT,
    BASE,
    PATIENCE,
    PYTHONS,
    ContainerFarm,
    container_farm,
    ended,
    error_text,
)
from tests.unit.loopback import pure_wheel

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

#: An image with one step, which downloads a package that does not exist.
OTHER_TOOL = f"""
import builder.images.image_build
builder.images.image_build.render_template = lambda *_: '''FROM {PYTHONS}
RUN --mount=type=secret,id=network,target=/run/secrets/network . /run/secrets/network; \\\\
    $(readlink -f /opt/python/cp312-cp312/bin/python3) -m pip download {ABSENT}
'''
"""

#: The normal image with one more label, so that its name differs.
OTHER_LABEL = """
import builder.images.image_build
plain = builder.images.image_build.render_template
builder.images.image_build.render_template = lambda *arguments: plain(*arguments) + "LABEL buildfarm.test={label}\\n"
"""

#: Containers of builds get 100 MB.
LITTLE_MEMORY = """
from builder.resources import Resources
builder.wheels.cibuildwheel.config.measure_resources = lambda: Resources(2, 100 << 20)
"""

#: Options of gcc that replace the compiler by a small program that takes memory without end. A real compiler near its
#: limit reads its own program from the disk again and again, for minutes, before the kernel ends it.
GREEDY = '"-wrapper", "sh,-c,exec tail /dev/zero", '


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


def test_interrupted_while_an_image_is_built(farm: ContainerFarm) -> None:
    farm.recipe("unmade")
    with farm.held(farm.lookups, patch=OTHER_TOOL) as run:
        assert farm.processes(), "buildx must be running"
        run.send_signal(signal.SIGINT)
        done = ended(run)
        assert done.code == 130, done.all
        farm.nothing_left()
        # The engine stops the step a moment later.
        wait_until(lambda: in_containers(ABSENT) == [], lambda: f"the end of {in_containers(ABSENT)}")


def in_containers(word: str) -> list[str]:
    """Command lines of all processes that contain a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in (line := path.read_bytes()):
                found.append(line.decode(errors="replace"))
    return found


def test_the_network_breaks_while_an_image_is_built(farm: ContainerFarm) -> None:
    farm.recipe("cut_image")
    farm.cut = True
    try:
        errors = error_text(farm.build(patch=OTHER_TOOL), 4)
    finally:
        farm.cut = False
    assert "the image could not be built because the network cannot be reached" in errors
    farm.nothing_left()


def test_the_network_breaks_while_packages_are_installed(farm: ContainerFarm) -> None:
    farm.recipe("cut")
    with farm.held(farm.fetches, packages=f"{farm.packages}-cut") as run:
        farm.cut = True
    try:
        errors = error_text(ended(run), 4)
    finally:
        farm.cut = False
        subprocess.run(["docker", "volume", "rm", f"{farm.packages}-cut"], capture_output=True, check=True)
    assert "the package index cannot be reached" in errors, errors
    assert "UV_DEFAULT_INDEX" in errors
    farm.nothing_left()


def test_the_engine_stops_during_a_compile(farm: ContainerFarm) -> None:
    farm.recipe("bereft")
    with engine_proxy() as proxy, farm.held(farm.compiles, DOCKER_HOST=proxy.address) as run:
        proxy.cut()
        errors = error_text(ended(run), 4)
        assert "the Docker engine stopped answering during the compile stage" in errors
        assert "status" not in errors
        left = set(farm.containers())
        assert left, "without an engine, the container cannot be removed"
        assert farm.processes() == []
    farm.build().ok()
    farm.nothing_left()


def test_the_disk_is_full_in_the_container(farm: ContainerFarm) -> None:
    farm.recipe("crammed")
    before = builds(farm)
    volume = f"{farm.packages}-small"
    options = ["type=tmpfs", "device=tmpfs", "o=size=128k,uid=1000"]
    subprocess.run(["docker", "volume", "create", *(f"--opt={word}" for word in options), volume], check=True)
    try:
        errors = error_text(farm.build(packages=volume), 1)
    finally:
        subprocess.run(["docker", "volume", "rm", volume], capture_output=True, check=True)
    assert "the disk is full" in errors, errors
    farm.nothing_left()
    assert builds(farm) == before


def builds(farm: ContainerFarm) -> set[Path]:
    """Finished builds in the store."""
    return set((farm.root / "store" / "builds").glob("*"))


def test_the_compiler_is_killed_when_memory_runs_out(farm: ContainerFarm) -> None:
    backend = farm.recipe("greedy").parent / "backend.py"
    before, option, after = backend.read_text().partition('"-shared", ')
    assert option
    backend.write_text(before + GREEDY + option + after)
    errors = error_text(farm.build(patch=LITTLE_MEMORY), 1)
    assert "a compiler was killed, probably because memory ran out" in errors, errors
    assert "--jobs" in errors
    assert "memory_per_job" in errors
    farm.nothing_left()


def test_parallel_runs(farm: ContainerFarm) -> None:
    """Runs with one store build a wheel once, a different store builds its own, and no run removes others' containers.

    Two stores build the image at the same time, and one environment looks three days old.
    """
    farm.recipe("shared")
    label = uuid4().hex[:12]
    patch = OTHER_LABEL.format(label=label)
    try:
        with farm.compiles.closed():
            before = farm.compiles.arrivals
            runs = [farm.start(store="one", patch=patch), farm.start(store="two", patch=patch)]
            farm.compiles.await_arrival(before + 2)
            held = {*farm.containers("one"), *farm.containers("two")}
            assert len(held) == 2
            backdate(farm)
            runs += [farm.start(store="one", patch=patch), farm.start(store="three", patch=patch)]
            farm.compiles.await_arrival(before + 3)
            assert runs[2].stderr is not None
            errors = ""
            while "which builds this project too" not in errors:
                errors += (line := runs[2].stderr.readline())
                assert line, errors
            assert held <= {*farm.containers("one"), *farm.containers("two")}
        for run in runs:
            ended(run).ok()
        assert farm.compiles.arrivals == before + 3
        assert farm.wheels("one") == farm.wheels("two") == farm.wheels("three")
        for store in ("one", "two", "three"):
            farm.nothing_left(store)
    finally:
        farm.end()
        subprocess.run(
            f"docker image rm $(docker images --quiet --filter label=buildfarm.test={label})", shell=True, check=True
        )


def backdate(farm: ContainerFarm) -> None:
    """Make all build environments look three days old, as with a clock that is three days ahead."""
    touch = "find /it -maxdepth 1 -name 'env-*' -exec touch -d '3 days ago' {} +"
    argv = ["docker", "run", "--rm", "--volume", f"{farm.packages}:/it", BASE, "sh", "-c", touch]
    subprocess.run(argv, check=True)


CUDA_BASE = "buildfarm-cuda:12.4-trixie"
CELL = Cell.parse("torch2.6.0-cu124-cp312")

MATRIX = f"""\
torch: [2.6]
cuda: [12.4]
python: [3.12]
extensions: [{ROOT}/extensions/ms_deform_attn]
images:
  - cells: "*"
    image: {CUDA_BASE}
    pythons: {PYTHONS}
"""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_images(CUDA_BASE, PYTHONS)
    path = tmp_path_factory.mktemp("smoke") / "matrix.yaml"
    path.write_text(MATRIX)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Store]:
    """A store for one test, whose containers are removed: those of a failed test must not keep the image in use."""
    store = Store(tmp_path / "store")
    yield store
    Engine().remove_orphans(store)


def containers(store: Store) -> list[str]:
    """Names of this store's containers, running or not."""
    return [owner for owner in Engine().owners() if owner.startswith(store.owner(""))]


def strange_wheel(folder: Path, module: str = "") -> Path:
    """A wheel without a recipe: it can be imported, and has no ops."""
    return pure_wheel(folder, "strange", "1.0", {"strange/__init__.py": module}, requires=["torch==2.6.*"])


@contextmanager
def running(matrix: Path, store: Store, *words: str | Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A running `buildfarm smoke`; killed at the end of the test."""
    argv = [BUILDFARM, "smoke", "--executor", "docker", *words, "--matrix", matrix, "--store", store.root]
    farm = subprocess.Popen(
        [str(word) for word in argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=store.root,
        env={**os.environ, **variables},
        # The default handler for SIGINT, whatever started the tests.
        preexec_fn=in_foreground,  # noqa: PLW1509 - no thread is at work here
    )
    try:
        yield farm
    finally:
        if farm.poll() is None:
            farm.kill()
        farm.communicate()


def imports_begin(store: Store, farm: subprocess.Popen[str]) -> None:
    """Wait until the container imports the wheel."""
    wait_until(lambda: logged(store, "importlib") or farm.poll() is not None, "an import in the log", PATIENCE)
    assert farm.poll() is None, farm.communicate()[0]


def logged(store: Store, word: str) -> bool:
    """Whether a log file of this store contains a word."""
    return any(word in log.read_text(errors="replace") for log in (store.root / "logs").glob("*.log"))


@pytest.fixture
def prove(matrix: Path, own: Store, tmp_path: Path) -> Callable[[str], list[Any]]:
    """Prove a wheel whose module is this text in the cell; returns its proofs."""

    def prove(module: str) -> list[Any]:
        declared = load_matrix(matrix)
        wheel = strange_wheel(tmp_path, module)
        finder = TargetFinder(declared, load_recipes(declared), Selection(), cache=tmp_path)
        (target,) = finder.find([str(wheel)], tmp_path)
        environments = Environments(own, declared.torch_index)
        cells = ContainerEnvironments(Engine(), own, ImageChooser(declared, Compat.load(), {}), environments)
        cell_run = CellRunner(own, cells, tmp_path / "log").run(CELL, wheel, target.sha256, target.recipe)
        return list(cell_run.proofs)

    return prove


def test_symbols_of_the_torch_in_the_image(matrix: Path, own: Store, tmp_path: Path) -> None:
    declared = load_matrix(matrix)
    environments = Environments(own, declared.torch_index)
    cells = ContainerEnvironments(Engine(), own, ImageChooser(declared, Compat.load(), {}), environments)
    with (
        own.work("symbols") as folder,
        cells.open(CELL, folder, owner=own.owner("symbols"), log=tmp_path / "log") as cell,
    ):
        symbols = cell.symbols()
    assert {"libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libcudart.so.12"} <= set(symbols.libraries)
    assert len(symbols.libraries["libtorch_cpu.so"].defined) > 10_000
    assert not symbols.cxx11, "torch 2.6 for CUDA 12.4 has the std::string of before GCC 5"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import os; os.abort()", "import of strange crashed with SIGABRT"),
        ("import strange_that_is_not_there", "No module named 'strange_that_is_not_there'"),
    ],
    ids=["crash", "error"],
)
def test_failed_import_in_a_container_is_reported_as_on_this_machine(
    prove: Callable[[str], list[Any]], own: Store, module: str, reason: str
) -> None:
    (imported,) = [proof for proof in prove(module) if proof.check is Check.IMPORT]
    assert imported.verdict is Verdict.FAILED
    assert reason in imported.reason
    assert containers(own) == []


def test_container_out_of_memory_means_not_run(
    prove: Callable[[str], list[Any]], own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_module, "measure_resources", lambda: Resources(cores=2, memory=1 << 30))
    proofs = prove("keep = bytearray(b'x') * (3 << 30)")
    assert {proof.verdict for proof in proofs} == {Verdict.NOT_RUN}
    assert all("the container ran out of memory: its limit was 1.0 GiB" in proof.reason for proof in proofs)
    assert containers(own) == []


HANGS = "import time; time.sleep(3600)"


def test_ctrl_c_removes_the_container(matrix: Path, own: Store, tmp_path: Path) -> None:
    with running(matrix, own, strange_wheel(tmp_path, HANGS)) as farm:
        imports_begin(own, farm)
        farm.send_signal(signal.SIGINT)
        assert farm.wait(PATIENCE) == 130
    assert containers(own) == []


def test_next_run_removes_the_container_of_a_killed_run(matrix: Path, own: Store, tmp_path: Path) -> None:
    with running(matrix, own, strange_wheel(tmp_path, HANGS)) as farm:
        imports_begin(own, farm)
        farm.kill()
        farm.wait()
    assert len(containers(own)) == 1
    # A different wheel has a different owner, so the container is not found by the owner of the new run.
    with running(matrix, own, strange_wheel(tmp_path / "other"), "--json") as farm:
        output, _ = farm.communicate(timeout=PATIENCE)
    assert farm.returncode == 0, output
    assert containers(own) == []


def test_lost_engine_means_not_run(matrix: Path, own: Store, tmp_path: Path) -> None:
    wheel = strange_wheel(tmp_path, HANGS)
    with engine_proxy() as proxy, running(matrix, own, wheel, "--json", DOCKER_HOST=proxy.address) as farm:
        imports_begin(own, farm)
        proxy.cut()
        output, _ = farm.communicate(timeout=PATIENCE)
    assert farm.returncode == 4, output
    assert "the Docker engine stopped answering " in output
    assert "no check could run in any of the cells" in output
    assert len(containers(own)) == 1, "without an engine the container cannot be removed"
    assert len(Engine().remove_orphans(own)) == 1, "the next run removes it"
    assert containers(own) == []


def test_offline_container_has_no_network_interface(matrix: Path, tmp_path: Path) -> None:
    del matrix
    with Engine().container(ContainerSpec(CUDA_BASE, {OWNER_LABEL: "test/offline"})) as container:
        # The kernel may add interfaces of tunnels, which are down and lead nowhere.
        look = ["sh", "-c", "cat /sys/class/net/eth0/operstate; cat /proc/net/route"]
        assert container.run(look, log=tmp_path / "log").stdout.startswith("up\n")
        container.go_offline()
        state = container.run(look, log=tmp_path / "log")
        assert "eth0" not in state.stdout
        assert len(state.stdout.splitlines()) == 1, "a heading and no route"


class EngineProxy:
    """Forwards bytes between `address` and the engine until it is cut; then nothing listens at the address."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/sock"
        self._engine = Engine()._context[1].removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/sock")
        self._listener.listen(64)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """Close all connections and accept no new ones."""
        for side in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):  # cut
            while True:
                near, _ = self._listener.accept()
                self._start(self._serve, near)

    def _serve(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(self._engine)
            self._open += [near, far]
            back = threading.Thread(target=_forward, args=(far, near))
            back.start()
            _forward(near, far)
            back.join()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def engine_proxy() -> Iterator[EngineProxy]:
    """A proxy that runs during the body."""
    with tempfile.TemporaryDirectory(
        prefix="buildfarm-"
    ) as folder:  # short, because the path of a socket has at most 107 bytes
        proxy = EngineProxy(Path(folder))
        try:
            yield proxy
        finally:
            proxy.cut()
