"""The shim that makes a setup.py believe in a GPU: that one answer, under every Python, and only when asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import builder.wheels
from builder.matrix.axes import Python
from builder.wheels.toolchain.pythons import find_python

SHIM = Path(builder.wheels.__file__).parent / "assume_cuda"
#: The oldest Python a recipe may be built with, a newer one and this; a machine has not all of them.
PYTHONS = {
    str(python): found.path
    for python in (Python(3, 8), Python(3, 13), Python(*sys.version_info[:2]))
    if (found := find_python(python))
}


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A torch that finds no GPU and whose other answers can be told from the shim's."""
    cuda = tmp_path / "torch" / "cuda"
    cuda.mkdir(parents=True)
    (cuda / "__init__.py").write_text(
        "def is_available():\n    return False\n\ndef device_count():\n    return 0\n\nname = __name__\n"
    )
    (tmp_path / "torch" / "__init__.py").write_text("from torch import cuda\n")
    return tmp_path


def say(python: Path, code: str, *path: Path) -> str:
    done = subprocess.run(
        [python, "-W", "error", "-c", code],
        env={"PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
@pytest.mark.parametrize("code", ["import torch", "from torch import cuda; import torch"])
def test_there_is_a_gpu_with_the_shim_and_none_without(python: Path, code: str, torch: Path) -> None:
    code += "; print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.name)"
    assert say(python, code, torch) == "False 0 torch.cuda"
    assert say(python, code, SHIM, torch) == "True 0 torch.cuda"


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
def test_gpus_are_those_of_the_plan(python: Path, torch: Path) -> None:
    """The newest architecture is the first GPU."""
    code = """
import os
os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0;9.0a;12.0+PTX"
import torch
cuda = torch.cuda
found = [cuda.get_device_capability(n) for n in range(cuda.device_count())]
print(found, cuda.get_device_capability(), cuda.get_device_capability("cuda:1"), cuda.current_device())
print(cuda.get_device_properties(2).total_memory >= 16 << 30, "8.0" in cuda.get_device_name(2))
"""
    assert say(python, code, SHIM, torch).splitlines() == ["[(12, 0), (9, 0), (8, 0)] (12, 0) (9, 0) 0", "True True"]


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
def test_what_is_not_torch_is_left_alone(python: Path, tmp_path: Path) -> None:
    code = "import json, sys; print('torch' in sys.modules, json.dumps([1]))"
    assert say(python, code, SHIM) == "False [1]"
    code = "\ntry:\n    import torch.cuda\nexcept ImportError as error:\n    print(type(error).__name__)"
    assert say(python, code, SHIM, tmp_path) == "ModuleNotFoundError"
