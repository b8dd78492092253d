"""Real wheels in real cells: our extensions, wheels of others, pip's installation, and the op gate on each of them."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from builder.errors import Exit
from builder.proof import Check
from builder.proofs.cells.op_gate import GATE_CHECKS
from tests.conftest import BUILDFARM, ROOT, Farm, lacking, run, wheel_of
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


@pytest.mark.parametrize(("torch", "python"), [("2.13.0", "3.13"), ("2.15.0", "3.11")], ids=lambda text: text)
def test_pip_installs_it_and_it_runs(
    built: Path, venv: Callable[..., Path], python_of: Callable[[str], Path], torch: str, python: str
) -> None:
    interpreter = venv(python_of(python), f"torch=={torch}", "numpy", "pip")
    words = ("-m", "pip", "install", "--no-index", "--find-links", built, "ms_deform_attn")
    run(interpreter, *words, env={"PIP_FIND_LINKS": ""}).ok()
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


NEWEST = ("2.15", "13.2", "3.13")
# Three cells represent the nine of torch {2.11, 2.13, 2.15} x Python {3.11, 3.12, 3.13}: one wheel of ms_deform_attn
# runs with each torch and each Python once; diffrast, whose 53 cases take four minutes of CPU time, only on the newest.
# All nine cells would take half an hour more: `buildfarm build` with three torches, three Pythons, CUDA 13.0 and 13.2.
#: The cell of each build, and its GPU architectures; () for all architectures of torch's own wheel.
BUILT = {"ms_deform_attn": (("2.11", "13.0", "3.12"), ()), "diffrast": (NEWEST, ("7.5", "12.0"))}
#: Further cells for the wheel of ms_deform_attn.
OTHERS = (("2.13", "13.0", "3.11"), NEWEST)

#: Checks that must pass in a cell: all that need no GPU.
REQUIRED = (Check.IMPORT, *(check for check in GATE_CHECKS if not check.on_gpu))


def selection(cell: tuple[str, str, str], extension: str) -> list[str]:
    options = zip(("--torch", "--cuda", "--python"), cell, strict=True)
    return [*(part for pair in options for part in pair), "--ext", extension]


@pytest.fixture(scope="module")
def dists(farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The dist folder of each extension's build."""
    made = {}
    for extension, (cell, archs) in BUILT.items():
        made[extension] = tmp_path_factory.mktemp("gate") / "dist"
        options = [*selection(cell, extension), *(option for arch in archs for option in ("--arch", arch))]
        farm("build", *options, "--executor", "local", "--store", store, "--dist", made[extension]).ok()
    return made


def assert_passed(proofs: list[dict[str, Any]], where: str) -> None:
    verdicts = {proof["check"]: proof for proof in proofs}
    for check in REQUIRED:
        assert verdicts[str(check)]["verdict"] == "passed", f"{where}: {check}: {verdicts[str(check)]['reason']}"
    gpu = verdicts["gpu-values"]
    assert gpu["verdict"] == "passed" or (gpu["verdict"], gpu["reason"]) == ("not run", "no GPU on this machine")


@pytest.mark.parametrize("extension", BUILT)
def test_every_op_passes_in_the_cell_of_the_build(dists: dict[str, Path], extension: str) -> None:
    report = json.loads((dists[extension] / "report.json").read_text())
    (entry,) = report["builds"]
    assert_passed([proof for proof in entry["proofs"] if proof["cell"]], entry["serves"])


@pytest.mark.parametrize("cell", OTHERS, ids=["torch2.13-py3.11", "torch2.15-py3.13"])
def test_every_op_passes_in_other_cells_with_the_same_wheel(
    dists: dict[str, Path], farm: Farm, store: Path, cell: tuple[str, str, str]
) -> None:
    options = ("--store", store, "--dist", dists["ms_deform_attn"], "--json")
    done = farm("smoke", *selection(cell, "ms_deform_attn"), *options).ok()
    (one,) = json.loads(done.out)
    assert f"torch{cell[0]}." in one["cell"]
    assert_passed(one["proofs"], f"{one['subject']} in {one['cell']}")


def test_the_extensions_own_tests_pass_from_the_wheels(
    dists: dict[str, Path], venv: Callable[..., Path], python_of: Callable[[str], Path], tmp_path: Path
) -> None:
    wheels = [str(wheel_of(folder)) for folder in dists.values()]
    interpreter = venv(python_of("3.13"), "torch==2.15.0", "numpy", "pytest", "setuptools", *wheels)
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n")  # instead of the settings in a parent folder
    for name in BUILT:
        tests = ROOT / "extensions" / name / "tests"
        answer = run(interpreter, "-m", "pytest", "-q", "-c", settings, "-p", "no:cacheprovider", tests, cwd=tmp_path)
        assert answer.code == 0, answer.all[-6000:]
        assert re.search(r"\d+ passed", answer.out), answer.out[-2000:]


def test_torchvisions_official_wheel(
    farm: Farm, store: Path, tmp_path: Path, venv: Callable[..., Path], python_of: Callable[[str], Path]
) -> None:
    done = farm(
        *("smoke", "--ext", "torchvision", "--torch", "2.11", "--python", "3.12", "--store", store, "--json"),
        *("--dist", tmp_path),
    )
    if done.code == 4:
        lacking(done.err)
    assert done.code == 0, done.all
    (one,) = json.loads(done.out)
    proofs = {proof["check"]: proof for proof in one["proofs"]}
    assert one["subject"].startswith("torchvision-0.26.0-cp312")
    assert proofs["ops"]["verdict"] == "passed", proofs["ops"]
    # "values" counts as not run: two nvJPEG ops need a GPU, and the recipe does not claim what upstream gets wrong.
    assert proofs["values"]["verdict"] == "not run"
    for op in ("nms", "roi_align", "deform_conv2d"):
        for check in ("ops", "dispatch", "values", "layouts", "edges", "repeat", "memory", "opcheck", "fake"):
            ran = [o for o in proofs[check]["evidence"]["outcomes"] if o["op"] == f"torchvision::{op}"]
            assert ran, (check, op)
            assert {outcome["verdict"] for outcome in ran} == {"passed"}, (check, op)
        (keys,) = (o for o in proofs["dispatch"]["evidence"]["outcomes"] if o["op"] == f"torchvision::{op}")
        assert keys["reason"] == "CPU, CUDA"
    assert not [proof for proof in one["proofs"] if proof["verdict"] == "failed"]

    # `adopt` takes the proofs in the cell, checks the file, and publishes the wheel, from which uv installs.
    options = ("--torch", "2.11", "--python", "3.12", "--store", store, "--to", tmp_path / "index", "--json")
    done = farm("adopt", "torchvision==0.26.0", *options, "--require", "static").ok()
    (adopted,) = json.loads(done.out)
    assert (adopted["outcome"], adopted["cells"]) == ("published", {one["cell"]: "static"})
    assert adopted["origin"].endswith(one["subject"])
    kept = {proof["check"]: proof["when"] for proof in adopted["proofs"]}
    in_cell = {check: proof["when"] for check, proof in proofs.items() if proof["cell"]}
    assert {check: kept[check] for check in in_cell} == in_cell
    pages = (tmp_path / "index" / "cu130").as_uri()
    interpreter = venv(python_of("3.12"), "--no-deps", "--index-url", f"{pages}/", "torchvision==0.26.0")
    assert list(interpreter.parent.parent.glob("lib/python3.12/site-packages/torchvision/_C.so"))


#: Package indexes that do not answer, as on a machine without a network.
OFFLINE = {"UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple", "PIP_INDEX_URL": "http://127.0.0.1:1/simple"}


def test_one_file_on_a_machine_with_only_torch(
    dists: dict[str, Path], venv: Callable[..., Path], python_of: Callable[[str], Path], farm: Farm, tmp_path: Path
) -> None:
    installed = venv(python_of("3.12"), "torch==2.11.0", "numpy", str(wheel_of(dists["ms_deform_attn"])))
    farm("smoke", "--ext", "ms_deform_attn", "--pack", tmp_path / "gate.pyz").ok()
    done = run(
        installed, "-I", tmp_path / "gate.pyz", "--json", cwd=tmp_path, env={**OFFLINE, "PATH": "/usr/bin:/bin"}
    ).ok()
    answer = json.loads(done.out)
    assert {outcome["verdict"] for outcome in answer["outcomes"]} == {"passed", "not run"}
    left = {outcome["check"] for outcome in answer["outcomes"] if outcome["verdict"] == "not run"}
    assert all(check.startswith("gpu-") for check in left), left
