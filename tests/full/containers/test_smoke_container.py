"""Cells in real containers: the import of a wheel in a cell's runtime image, what a lost container leaves, who ends it.

One runtime image is made, with the whole torch of a cell: minutes the first time, nothing once the engine has it. The
cell is one of test_cuda_images.py, which has every op executed in the same image.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builder.commands.targets import TargetFinder
from builder.images.base_image_choice import ImageChooser
from builder.images.container import OWNER_LABEL, ContainerSpec
from builder.images.engine import Engine
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
from tests.fixtures.container_farm import PATIENCE
from tests.fixtures.engine_proxy import engine_proxy
from tests.unit.loopback import pure_wheel

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

BASE, PYTHONS = "buildfarm-cuda:12.4-trixie", "buildfarm-pythons:local"
CELL = Cell.parse("torch2.6.0-cu124-cp312")

MATRIX = f"""\
torch: [2.6]
cuda: [12.4]
python: [3.12]
extensions: [{ROOT}/extensions/ms_deform_attn]
images:
  - cells: "*"
    image: {BASE}
    pythons: {PYTHONS}
"""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_images(BASE, PYTHONS)
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
    with Engine().container(ContainerSpec(BASE, {OWNER_LABEL: "test/offline"})) as container:
        # The kernel may add interfaces of tunnels, which are down and lead nowhere.
        look = ["sh", "-c", "cat /sys/class/net/eth0/operstate; cat /proc/net/route"]
        assert container.run(look, log=tmp_path / "log").stdout.startswith("up\n")
        container.go_offline()
        state = container.run(look, log=tmp_path / "log")
        assert "eth0" not in state.stdout
        assert len(state.stdout.splitlines()) == 1, "a heading and no route"
