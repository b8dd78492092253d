"""The main job end to end: one command builds one wheel, which pip and uv install and which runs.

tests/full/test_cells.py does the same with several releases of torch and Python.
"""

import importlib.metadata
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.wheelfile.facts import read_facts
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import BUILDFARM, ROOT, Farm, cell_python, run, wheel_of
from tests.fixtures.built_cells import CALL

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: One cell, and one architecture.
PYTHON = str(cell_python())
SELECT = ("--torch", "2.11", "--cuda", "13.0", "--python", PYTHON, "--ext", "ms_deform_attn", "--arch", "9.0")


@pytest.fixture(scope="module")
def built(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dist folder of the README's main job, at a path with a space."""
    dist = tmp_path_factory.mktemp("out") / "my dist"
    done = run(BUILDFARM, "build", *SELECT, "--executor", "local", "--store", store, "--dist", dist).ok()
    assert re.search(r"^  not run +GPU +no GPU on this machine$", done.out, re.MULTILINE), done.out
    return dist


def test_one_wheel_with_its_report_and_index(built: Path) -> None:
    wheel = wheel_of(built)
    assert re.fullmatch(r"ms_deform_attn-0\.1\.0\+cu13-cp310-abi3-manylinux_2_\d+_x86_64\.whl", wheel.name)
    report = json.loads((built / "report.json").read_text())
    (entry,) = report["builds"]
    assert entry["wheel"] == wheel.name
    verdicts = {(p["check"], p["verdict"]) for p in entry["proofs"]}
    assert ("gpu-values", "not run") in verdicts
    assert ("gpu-values", "passed") not in verdicts
    of_file = ("payload", "tags", "metadata", "grafted", "abi3", "stable-abi", "device-code", "linkage")
    for check in (*of_file, "import", "ops", "values", "gradients", "fake", "compile"):
        assert (check, "passed") in verdicts, (check, verdicts)
    assert not [v for v in verdicts if v[1] == "failed"]


def test_it_is_installed_and_runs(built: Path, venv: Callable[..., Path], python_of: Callable[[str], Path]) -> None:
    """Each program installs it into the same environment; uv removes what the other one installed."""
    interpreter = venv(python_of(PYTHON), "torch==2.11.0", "numpy", "pip")
    uv = (find_uv(), "pip", "install", "--python", interpreter, "--reinstall-package", "ms_deform_attn")
    for installer, name in (((interpreter, "-m", "pip", "install"), "pip"), (uv, "uv")):
        run(*installer, "--no-index", "--find-links", built, "ms_deform_attn", env={"PIP_FIND_LINKS": ""}).ok()
        answer = json.loads(run(interpreter, "-I", "-c", CALL, cwd=built).ok().out)
        assert answer["torch"].startswith("2.11.0")
        info = next(Path(answer["file"]).parents[1].glob("ms_deform_attn-*.dist-info"))
        assert (info / "INSTALLER").read_text().strip() == name


def test_an_edited_source_rebuilds_only_what_depends_on_it(
    farm: Farm, store: Path, tmp_path: Path, built: Path
) -> None:
    """An edited header starts a build, which fails on purpose; an edited test does not."""
    del built
    copy = tmp_path / "project"
    copy.mkdir()
    shutil.copytree(ROOT / "extensions", copy / "extensions")
    shutil.copyfile(ROOT / "matrix.yaml", copy / "matrix.yaml")
    words = ("build", *SELECT, "--executor", "local", "--store", store, "--dist", tmp_path / "dist", "--json")
    unchanged = farm(*words, cwd=copy).ok()
    assert "already built" in unchanged.err
    (copy / "extensions/ms_deform_attn/tests/test_new.py").write_text("")
    assert "already built" in farm(*words, cwd=copy).err, "a test cannot change a wheel"
    header = copy / "extensions/ms_deform_attn/csrc/sample.h"
    header.write_text(header.read_text() + "\n#error edited on purpose\n")
    edited = farm(*words, cwd=copy)
    assert edited.code == 1
    assert "edited on purpose" in edited.all
    assert json.loads(edited.out)["builds"][0]["status"] == "failed"


def test_cuobjdump_lists_the_same_device_code(built: Path, tmp_path: Path) -> None:
    """Compare buildfarm's reader of fat binaries with cuobjdump."""
    facts = read_facts(wheel_of(built))
    (library,) = [library for library in facts.libraries if library.sass]
    with zipfile.ZipFile(wheel_of(built)) as archive:
        archive.extract(library.path, tmp_path)
    files = importlib.metadata.files("nvidia-cuda-cuobjdump") or []
    program = next(Path(str(file.locate())) for file in files if file.name == "cuobjdump")
    listing = run(program, "--list-elf", tmp_path / library.path).ok()
    assert set(re.findall(r"\.(sm_\w+)\.cubin", listing.out)) == set(library.sass)
