"""Real wheels for several cells: pip installs them, they run with three torches, and one comes from a third party."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from builder.errors import Exit
from tests.conftest import BUILDFARM, Farm, lacking, run, wheel_of
from tests.fixtures.built_cells import CALL

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: A second Python shows that one wheel serves both.
SELECT = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--python", "3.13", "--ext", "ms_deform_attn")


@pytest.fixture(scope="module")
def built(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dist folder of a build for two Pythons."""
    dist = tmp_path_factory.mktemp("out") / "dist"
    run(BUILDFARM, "build", *SELECT, "--executor", "local", "--store", store, "--dist", dist).ok()
    wheel = wheel_of(dist)
    assert re.fullmatch(r"ms_deform_attn-0\.1\.0\+cu13-cp310-abi3-manylinux_2_\d+_x86_64\.whl", wheel.name)
    return dist


@pytest.mark.parametrize(
    ("torch", "python"), [("2.11.0", "3.12"), ("2.13.0", "3.13"), ("2.15.0", "3.11")], ids=lambda text: text
)
def test_pip_installs_it_and_it_runs(
    built: Path, venv: Callable[..., Path], python_of: Callable[[str], Path], torch: str, python: str
) -> None:
    interpreter = venv(python_of(python), f"torch=={torch}", "numpy", "pip")
    run(
        interpreter,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--find-links",
        built,
        "ms_deform_attn",
        env={"PIP_FIND_LINKS": ""},
    ).ok()
    answer = run(interpreter, "-I", "-c", CALL, cwd=built).ok()
    assert json.loads(answer.out)["torch"].startswith(torch)


#: Its own examples in small, forward and backward, on the CPU; the values follow from the definition of each op.
SCATTER = """
import torch, torch_scatter
source = torch.tensor([5.0, 1, 7, 2, 3, 2, 1, 3], dtype=torch.float64, requires_grad=True)
index = torch.tensor([0, 0, 1, 0, 2, 2, 3, 3])
assert torch_scatter.scatter(source, index, reduce="sum").tolist() == [8, 7, 5, 4]
assert torch_scatter.scatter(source, index, reduce="mean").tolist() == [8 / 3, 7, 2.5, 2]
assert torch_scatter.scatter(source, index, reduce="max").tolist() == [5, 7, 3, 3]
pointer = torch.tensor([0, 2, 5, 8])
assert torch_scatter.segment_csr(source, pointer, reduce="sum").tolist() == [6, 12, 6]
assert torch.autograd.gradcheck(lambda s: torch_scatter.segment_csr(s, pointer, reduce="mean"), source)
for op in ("scatter_mul", "segment_sum_csr", "gather_coo"):
    assert torch._C._dispatch_has_kernel(f"torch_scatter::{op}"), op
"""


@pytest.fixture(scope="module")
def dist(farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its dist folder. It compiles one file at a time, for its setup.py switches ninja off."""
    folder = tmp_path_factory.mktemp("torch-scatter") / "a dist"
    # matrix.yaml has a recipe for exactly this source, which `build SOURCE` takes.
    words = ("torch-scatter==2.1.2", "--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--arch", "9.0")
    done = farm("build", *words, "--executor", "local", "--jobs", "1", "--store", store, "--dist", folder)
    if done.code == Exit.TOOL_MISSING:
        lacking(done.err)
    assert done.code == 0, done.all
    return folder


#: What all its ops pass without a GPU. Upstream promises nothing to torch.compile and torch.export, and some ops have
#: faults, which the recipe names: those checks count as not run.
EXECUTED = ("linkage", "import", "ops", "import-order", "values", "repeat")


def test_it_is_built_for_cuda_and_every_check_of_the_file_passed(dist: Path) -> None:
    (entry,) = json.loads((dist / "report.json").read_text())["builds"]
    assert entry["wheel"].startswith("torch_scatter-2.1.2+cu130.torch2.11-cp312-cp312-manylinux_2_")
    verdicts = {proof["check"]: proof["verdict"] for proof in entry["proofs"] if proof["cell"] is None}
    assert set(verdicts.values()) == {"passed"}, entry["proofs"]
    device_code = next(proof for proof in entry["proofs"] if proof["check"] == "device-code")
    assert "sm_90" in json.dumps(device_code), device_code


def test_its_libraries_carry_no_debug_information(dist: Path) -> None:
    """Python's own flags say -g: the libraries were 25 times as large, and took twice the time to compile."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so") and name.startswith("torch_scatter/_")]
        assert libraries
        for name in libraries:
            assert ELFFile(io.BytesIO(archive.read(name))).get_section_by_name(".debug_info") is None, name


def test_every_op_and_every_function_of_its_official_api_is_executed(dist: Path) -> None:
    (entry,) = json.loads((dist / "report.json").read_text())["builds"]
    proofs = {proof["check"]: proof for proof in entry["proofs"] if proof["cell"]}
    for check in EXECUTED:
        assert proofs[check]["verdict"] == "passed", f"{check}: {proofs[check]['reason']}"
    ran = {outcome["op"] for outcome in proofs["values"]["evidence"]["outcomes"] if outcome["verdict"] == "passed"}
    assert {"torch_scatter.scatter", "torch_scatter.segment_csr", "torch_scatter.scatter_softmax"} <= ran
    assert {"torch_scatter::segment_sum_csr", "torch_scatter::scatter_mul"} <= ran
    assert not [proof for proof in proofs.values() if proof["verdict"] == "failed"]
    assert proofs["gpu-values"]["verdict"] == "not run"


def test_pip_installs_torch_scatter_and_it_runs(
    dist: Path, venv: Callable[..., Path], python_of: Callable[[str], Path]
) -> None:
    interpreter = venv(python_of("3.12"), "torch==2.11.0", "numpy", "pip")
    run(interpreter, "-m", "pip", "install", "--no-index", "--find-links", str(dist), "torch_scatter").ok()
    run(interpreter, "-I", "-c", SCATTER, cwd=dist).ok()
