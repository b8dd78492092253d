"""Cells in real containers: the import of a wheel in a cell's runtime image, what a lost container leaves, who ends it.

One runtime image is made, with the whole torch of a cell: minutes the first time, nothing once the engine has it. The
cell is one of test_cuda_images.py, which has every op executed in the same image.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builder.images.abandoned import end_abandoned
from builder.images.container import LABEL, ContainerSpec
from builder.images.engine import Engine
from builder.images.specs import Choice
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Select, load_matrix, load_recipes
from builder.proof import Check, Verdict
from builder.proofs import container as room
from builder.proofs.container import ContainerCells
from builder.proofs.visit import Visitor
from builder.store import Store
from builder.subjects import find_subjects
from builder.wheels.environment import Environments
from builder.wheels.resources import Resources
from tests.conftest import BUILDFARM, ROOT, needs_images, storage_driver
from tests.integration.engine_proxy import engine_proxy
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

#: Longer than any step here takes on a busy machine, seconds.
PATIENCE = 900


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_images(BASE, PYTHONS)
    path = tmp_path_factory.mktemp("smoke") / "matrix.yaml"
    path.write_text(MATRIX)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Store]:
    """A store of its own, so that its containers are those of one test: one that failed must not hold the image."""
    store = Store(tmp_path / "store")
    yield store
    end_abandoned(Engine(), store, LABEL)


def containers(store: Store) -> list[str]:
    """Names of this store's containers, running or not."""
    return [mark for mark in Engine().marks(LABEL) if mark.startswith(store.mark(""))]


def strange_wheel(folder: Path, module: str = "") -> Path:
    """A wheel that nobody wrote a recipe for: it is imported, and has no ops."""
    return pure_wheel(folder, "strange", "1.0", {"strange/__init__.py": module}, requires=["torch==2.6.*"])


@contextmanager
def running(matrix: Path, store: Store, *words: str | Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The farm at work; killed with the test that started it."""
    argv = [BUILDFARM, "smoke", "--executor", "docker", *words, "--matrix", matrix, "--store", store.root]
    farm = subprocess.Popen(
        [str(word) for word in argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=store.root,
        env={**os.environ, **variables},
        # SIGINT as a shell in the foreground leaves it, whatever started the tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread is at work here
    )
    try:
        yield farm
    finally:
        if farm.poll() is None:
            farm.kill()
        farm.communicate()


def wait_for(seen: Callable[[], object], farm: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not seen():
        assert farm.poll() is None, farm.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.2)


def told(store: Store, word: str) -> bool:
    """Whether a log of this store holds a word."""
    return any(word in log.read_text(errors="replace") for log in (store.root / "logs").glob("*.log"))


@pytest.fixture
def visit(matrix: Path, own: Store, tmp_path: Path) -> Callable[[str], list[Any]]:
    """Visit the cell with a wheel whose module is this text; its proofs."""

    def visit(module: str) -> list[Any]:
        declared = load_matrix(matrix)
        wheel = strange_wheel(tmp_path, module)
        (subject,) = find_subjects([str(wheel)], declared, load_recipes(declared), Select(), tmp_path, tmp_path, "")
        environments = Environments(own, declared.torch_index)
        cells = ContainerCells(Engine(), own, Choice(declared, Compat.load(), {}), environments)
        seen = Visitor(own, cells, tmp_path / "log").visit(CELL, wheel, subject.sha256, subject.recipe)
        return list(seen.proofs)

    return visit


def test_symbols_are_those_of_the_images_torch(matrix: Path, own: Store, tmp_path: Path) -> None:
    declared = load_matrix(matrix)
    environments = Environments(own, declared.torch_index)
    cells = ContainerCells(Engine(), own, Choice(declared, Compat.load(), {}), environments)
    with own.work("symbols") as folder, cells.open(CELL, folder, job=own.mark("symbols"), log=tmp_path / "log") as cell:
        symbols = cell.symbols()
    assert {"libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libcudart.so.12"} <= set(symbols.providers)
    assert len(symbols.providers["libtorch_cpu.so"].defined) > 10_000
    assert not symbols.cxx11, "torch 2.6 for CUDA 12.4 has the std::string of before GCC 5"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import os; os.abort()", "import of strange crashed with SIGABRT"),
        ("import strange_that_is_not_there", "No module named 'strange_that_is_not_there'"),
    ],
    ids=["crash", "error"],
)
def test_an_import_that_fails_in_a_container_is_told_as_anywhere(
    visit: Callable[[str], list[Any]], own: Store, module: str, reason: str
) -> None:
    (imported,) = [proof for proof in visit(module) if proof.check is Check.IMPORT]
    assert imported.verdict is Verdict.FAILED
    assert reason in imported.reason
    assert containers(own) == []


def test_a_container_without_memory_proves_nothing(
    visit: Callable[[str], list[Any]], own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "measure", lambda: Resources(cores=2, memory=1 << 30))
    proofs = visit("keep = bytearray(b'x') * (3 << 30)")
    assert {proof.verdict for proof in proofs} == {Verdict.NOT_RUN}
    assert all("the container ran out of memory: it may take 1.0 GiB" in proof.reason for proof in proofs)
    assert containers(own) == []


HANGS = "import time; time.sleep(250)"


def test_control_c_ends_the_container(matrix: Path, own: Store, tmp_path: Path) -> None:
    with running(matrix, own, strange_wheel(tmp_path, HANGS)) as farm:
        wait_for(lambda: told(own, "importlib"), farm)
        farm.send_signal(signal.SIGINT)
        assert farm.wait(60) == 130
    assert containers(own) == []


def test_a_killed_run_leaves_a_container_that_the_next_one_ends(matrix: Path, own: Store, tmp_path: Path) -> None:
    with running(matrix, own, strange_wheel(tmp_path, HANGS)) as farm:
        wait_for(lambda: told(own, "importlib"), farm)
        farm.kill()
        farm.wait()
    assert len(containers(own)) == 1
    # Another wheel is another job: it is not by its own mark that the container is found.
    with running(matrix, own, strange_wheel(tmp_path / "other"), "--json") as farm:
        said, _ = farm.communicate(timeout=PATIENCE)
    assert farm.returncode == 0, said
    assert containers(own) == []


def test_an_engine_gone_in_the_middle_proves_nothing(matrix: Path, own: Store, tmp_path: Path) -> None:
    wheel = strange_wheel(tmp_path, HANGS)
    with engine_proxy() as proxy, running(matrix, own, wheel, "--json", DOCKER_HOST=proxy.address) as farm:
        wait_for(lambda: told(own, "importlib"), farm)
        proxy.cut()
        said, _ = farm.communicate(timeout=60)
    assert farm.returncode == 4, said
    assert "the Docker engine went away " in said
    assert "no check could be run in any of these cells" in said
    assert len(containers(own)) == 1, "nobody could end it"
    assert len(end_abandoned(Engine(), own, LABEL)) == 1, "as the next run does first"
    assert containers(own) == []


def test_a_container_off_its_network_has_no_way_out(matrix: Path, tmp_path: Path) -> None:
    del matrix
    with Engine().container(ContainerSpec(BASE, {LABEL: "test/offline"})) as container:
        look = ["ls", "/sys/class/net"]
        assert container.step(look, log=tmp_path / "log").stdout.split() == ["eth0", "lo"]
        container.go_offline()
        assert container.step(look, log=tmp_path / "log").stdout.split() == ["lo"]


def test_a_container_is_eased_in_its_first_step(matrix: Path, tmp_path: Path) -> None:
    del matrix
    with Engine().container(ContainerSpec(BASE, {LABEL: "test/eased"})) as container:
        container.step(["sleep", "1"], log=tmp_path / "log")
        mode = container.step(["stat", "--format=%a", "/"], log=tmp_path / "log").stdout.strip()
    assert mode == ("705" if storage_driver() == "fuse-overlayfs" else "755")
