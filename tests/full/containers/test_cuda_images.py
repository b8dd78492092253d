"""Real cells of three CUDA major versions, built and run in containers whose base images have the toolkits.

tests/images/make-base makes the base images from Debian's packages, with the layout of NVIDIA's images.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.matrix.axes import Python
from builder.wheelfile.compatibility import is_compatible
from builder.wheels.cibuildwheel.config import PACKAGES_VOLUME
from tests.conftest import ROOT, Farm, free_disk, needs_images
from tests.fixtures.built_cells import assert_proven, record, report

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

PYTHONS = "buildfarm-pythons:local"

#: The torch version that other tests use too.
COMMON = "2.11"


@pytest.fixture
def own(store: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """A store and a uv cache that are deleted after the test: a torch that no other test uses has 9 GB.

    The engine's volume of packages is deleted too, because no later test uses it.
    """
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params["torch"] == COMMON:
        yield {"BUILDFARM_STORE": str(store)}
        return
    folders = {"BUILDFARM_STORE": str(tmp_path / "store"), "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    yield folders
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)  # a skipped test did not create them
    free_disk(PACKAGES_VOLUME)


def declare(folder: Path, torch: str, cuda: str, pythons: str, arch: str, image: str, toolkit: str) -> None:
    """Write a matrix.yaml with one extension and one image for all cells."""
    needs_images(image, PYTHONS)
    (folder / "matrix.yaml").write_text(
        f"torch: [{torch}]\ncuda: [{cuda}]\npython: [{pythons}]\narchs: [{arch}]\n"
        f"extensions: ['{ROOT / 'extensions/ms_deform_attn'}']\n"
        f"images:\n  - {{cells: '*', image: '{image}', pythons: '{PYTHONS}', toolkit: {toolkit}}}\n"
    )


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
    # Debian trixie has a newer glibc than bookworm, so this machine cannot install that wheel.
    proofs = {p["check"]: p for b in report(tmp_path)["builds"] for p in b["proofs"]}
    in_container = not is_compatible(wheel.name, Python.parse(python))
    assert ("image" in proofs["import"]["evidence"]) is in_container
    if in_container:
        where = proofs["gpu-values"]["evidence"]["where"]
        assert where["image"].startswith(f"buildfarm/run-{cell}:")
        assert proofs["gpu-values"]["reason"] == where["no_gpu"]
