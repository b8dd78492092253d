"""One wheel for Python 3.15 with and without a GIL (abi3t, PEP 803): built, tested in both cells, and installed.

Needs python3.15 and python3.15t on PATH, such as those of `uv python install 3.15 3.15t`, and downloads 5 GB.
"""

import shutil
from pathlib import Path

import pytest

from builder.matrix.axes import Python
from builder.wheels.toolchain.pythons import find_python
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import ROOT, Farm, lacking, run

pytestmark = [pytest.mark.network, pytest.mark.slow]

PYTHONS = (Python(3, 15), Python(3, 15, free_threaded=True))
MATRIX = "{torch: [2.15], cuda: [13.2], python: [3.13, 3.15, 3.15t], archs: [9.0], extensions: [ms_deform_attn]}\n"
#: Prints whether the GIL is off after the import, and a value of the op.
USE = """\
import sys, torch
from ms_deform_attn import ms_deform_attn
one = torch.ones
points, level = one(1, 1, 1, 1, 1, 2) / 2, torch.tensor([[2, 2]])
out = ms_deform_attn(one(1, 4, 1, 8), level, torch.tensor([0]), points, one(1, 1, 1, 1, 1))
print(not sys._is_gil_enabled(), out.mean().item())
"""


def test_one_wheel_for_both_pythons(farm: Farm, store: Path, tmp_path: Path) -> None:
    """pip and uv install in 3.15 and 3.15t the wheel that was tested there; the op runs, and the GIL stays off."""
    found = {python: one.path for python in PYTHONS if (one := find_python(python))}
    if len(found) < len(PYTHONS):
        lacking("Python 3.15 and 3.15t")
    shutil.copytree(ROOT / "extensions/ms_deform_attn", tmp_path / "ms_deform_attn")
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    for words in (["build"], ["publish", "--to", "index", "--require", "cpu"]):
        done = farm(*words, "--store", store, cwd=tmp_path)
        assert done.code == 0, done.all
    tags = {wheel.stem.split("-", 2)[-1].rsplit("-", 1)[0] for wheel in (tmp_path / "dist").glob("*.whl")}
    assert tags == {"cp310-abi3", "cp315-abi3.abi3t"}
    index = f"{(tmp_path / 'index').as_uri()}/simple"
    for python, interpreter in found.items():
        place = tmp_path / f"env-{python}"
        run(find_uv(), "venv", "-q", "--seed", "--python", interpreter, place)
        here = place / "bin/python"
        run(find_uv(), "pip", "install", "-q", "--python", here, "torch==2.15.0", "numpy")
        uv: list[str | Path] = [find_uv(), "pip", "install", "--reinstall", "--python", here]
        pip: list[str | Path] = [here, "-m", "pip", "install"]
        for start in (pip, uv):
            done = run(*start, "-q", "--no-deps", "--index-url", index, "ms_deform_attn")
            assert done.code == 0, done.all
            (record,) = place.glob("lib/*/site-packages/ms_deform_attn-*.dist-info/WHEEL")
            assert "Tag: cp315-abi3t-" in record.read_text()
            done = run(here, "-c", USE)
            assert done.code == 0, done.all
            assert done.out.split() == [str(python.free_threaded), "1.0"]
