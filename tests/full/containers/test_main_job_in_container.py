"""The main job in a container: the same name, tags and checks of the wheel as on this machine."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Farm, needs_images
from tests.fixtures.container_farm import BASE, PYTHONS

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]


def test_the_main_job_in_a_container(farm: Farm, store: Path, tmp_path: Path) -> None:
    """The README's extension, nvcc from the package index: same name, tags and checks as with the local executor."""
    needs_images(BASE, PYTHONS)
    (tmp_path / "matrix.yaml").write_text(
        "torch: [2.11]\ncuda: [13.0]\npython: [3.12]\narchs: [9.0+PTX]\n"
        f"extensions: ['{ROOT / 'extensions/ms_deform_attn'}']\n"
        f"images:\n  - {{cells: '*', image: '{BASE}', pythons: '{PYTHONS}'}}\n"
    )
    done = farm("build", "--executor", "docker", "--store", store, cwd=tmp_path).ok()
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith("ms_deform_attn-0.1.0+cu13-cp310-abi3-manylinux_2_")
    assert re.search(r"^  not run +GPU +no GPU on this machine$", done.out, re.MULTILINE), done.out
    assert list((tmp_path / "dist").glob("ms_deform_attn-*.whl"))
