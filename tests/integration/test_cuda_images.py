"""Real cells of three CUDA majors, each built in a container of a base image that holds its toolkit, and executed.

The bases are stand-ins made of Debian's packages (tests/images/make-base), laid out like NVIDIA's.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.matrix.axes import Python
from builder.wheels.container import PACKAGES_VOLUME
from builder.wheels.official import fits
from tests.conftest import ROOT, Farm, Ran, free_disk, needs_images

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

PYTHONS = "buildfarm-pythons:local"

#: What is proven of a cell without a GPU; the op gate's checks come on top.
CHECKS = {"linkage", "import", "ops", "dispatch", "values", "gradients"}


#: The torch of these cells that other tests use too.
COMMON = "2.11"


@pytest.fixture
def own(store: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """A store and a cache of uv's that go with the test, for a torch that no other test uses is 9 GB on disk.

    So are the packages of its containers, of which the engine has one volume: these tests are the last to use it.
    """
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params["torch"] == COMMON:
        yield {"BUILDFARM_STORE": str(store)}
        return
    folders = {"BUILDFARM_STORE": str(tmp_path / "store"), "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    yield folders
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)  # a test that was skipped made none
    free_disk(PACKAGES_VOLUME)


def declare(folder: Path, torch: str, cuda: str, pythons: str, arch: str, image: str, toolkit: str) -> None:
    """A person's matrix.yaml: one extension, one image for all of its cells."""
    needs_images(image, PYTHONS)
    (folder / "matrix.yaml").write_text(
        f"torch: [{torch}]\ncuda: [{cuda}]\npython: [{pythons}]\narchs: [{arch}]\n"
        f"extensions: ['{ROOT / 'extensions/ms_deform_attn'}']\n"
        f"images:\n  - {{cells: '*', image: '{image}', pythons: '{PYTHONS}', toolkit: {toolkit}}}\n"
    )


def report(folder: Path) -> dict[str, Any]:
    """What `report.json` says."""
    found: dict[str, Any] = json.loads((folder / "dist/report.json").read_text())
    return found


def record(wheel: Path) -> dict[str, Any]:
    """What a wheel says of how it was made."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/buildfarm.json")]
        found: dict[str, Any] = json.loads(archive.read(name))
        return found


def verdicts(folder: Path) -> dict[tuple[str, str], str]:
    """Cell and check to verdict, over all wheels of the report; the files' own checks aside."""
    proofs = [proof for build in report(folder)["builds"] for proof in build["proofs"]]
    return {(proof["cell"], proof["check"]): proof["verdict"] for proof in proofs if proof["cell"]}


def assert_proven(ran: Ran, folder: Path, cells: set[str]) -> None:
    """Every check of these cells that needs no GPU was run and passed."""
    assert ran.code == 0, ran.all
    found = verdicts(folder)
    assert {cell for cell, _ in found} == cells
    wrong = {key: verdict for key, verdict in found.items() if key[1] in CHECKS and verdict != "passed"}
    assert not wrong, ran.all
    assert "failed" not in found.values(), ran.all
    assert {verdict for (_, check), verdict in found.items() if check.startswith("gpu")} == {"not run"}


@pytest.mark.parametrize(
    ("torch", "cuda", "python", "arch", "image", "toolkit", "cell"),
    [
        (COMMON, "13.0", "3.12", "9.0", "buildfarm-cuda:13.0-bookworm", "13.0", "torch2.11.0-cu130-cp312"),
        ("2.6", "12.4", "3.12", "9.0", "buildfarm-cuda:12.4-trixie", "12.4", "torch2.6.0-cu124-cp312"),
        ("2.0", "11.7", "3.11", "8.6", "buildfarm-cuda:11.8-bookworm", "11.8", "torch2.0.1-cu117-cp311"),
    ],
    ids=["cuda13", "cuda12", "cuda11"],
)
def test_a_cell_of_each_major(
    farm: Farm,
    own: dict[str, str],
    tmp_path: Path,
    torch: str,
    cuda: str,
    python: str,
    arch: str,
    image: str,
    toolkit: str,
    cell: str,
) -> None:
    declare(tmp_path, torch, cuda, python, arch, image, toolkit)
    ran = farm("build", "--executor", "docker", cwd=tmp_path, env=own)
    assert_proven(ran, tmp_path, {cell})
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    toolchain = record(wheel)["toolchain"]
    assert toolchain["nvcc"].startswith(f"{toolkit}.")
    assert ("stands in for" in toolchain) is (cuda != toolkit)
    # Debian trixie's C library is newer than bookworm's: that wheel this machine would not take.
    proofs = {p["check"]: p for b in report(tmp_path)["builds"] for p in b["proofs"]}
    elsewhere = not fits(wheel.name, Python.parse(python))
    assert ("image" in proofs["import"]["evidence"]) is elsewhere
    if elsewhere:
        where = proofs["gpu-values"]["evidence"]["where"]
        assert where["image"].startswith(f"buildfarm/run-{cell}:")
        assert proofs["gpu-values"]["reason"] == where["no_gpu"]


def test_the_headline_command(farm: Farm, own: dict[str, str], tmp_path: Path) -> None:
    """`buildfarm build --torch 2.2 --cuda 12.1`, word for word, with the stand-in images declared in matrix.yaml."""
    declare(tmp_path, "2.2", "12.1", "3.10, 3.11, 3.12", "9.0", "buildfarm-cuda:12.4-trixie", "12.4")
    ran = farm("build", "--torch", "2.2", "--cuda", "12.1", cwd=tmp_path, env=own)
    assert_proven(ran, tmp_path, {f"torch2.2.2-cu121-cp{minor}" for minor in (310, 311, 312)})
    wheels = sorted((tmp_path / "dist").glob("*.whl"))
    assert [wheel.name.split("-")[:4] for wheel in wheels] == [
        ["ms_deform_attn", "0.1.0+cu121.torch22", f"cp{minor}", f"cp{minor}"] for minor in (310, 311, 312)
    ]
    assert "executor: docker" in ran.err
    assert ran.out.count("compiled with CUDA 12.4.131, a stand-in for CUDA 12.1") == 3
    for wheel in wheels:
        toolchain = record(wheel)["toolchain"]
        assert (toolchain["nvcc"], toolchain["stands in for"]) == ("12.4.131", "CUDA 12.1")
        assert toolchain["c++"].startswith("g++ 12."), "torch 2.2's headers do not pass through nvcc with gcc 13"
