"""Incident 3: torchvision of another torch, and an extension built for the CPU only."""

from collections.abc import Callable
from pathlib import Path

import pytest

from builder.wheels.toolchain.uv import find_uv
from tests.conftest import Ran, run
from tests.fixtures.gate_env import make_environment
from tests.real.incidents.conftest import PYTHON, TORCH, Build, Built, says

pytestmark = [pytest.mark.network, pytest.mark.slow]

PAGE = "missing-cuda-kernels.md"

#: Asks the dispatcher for the CUDA kernel of the op, as a call with CUDA tensors does. Needs no GPU.
CALL = """
import torch, toy_attn
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
torch.ops.toy_attn.forward.default.redispatch(cuda, torch.ones(2), torch.ones(2))
"""


@pytest.fixture(scope="module")
def without_cuda(build: Build) -> Built:
    """A build that leaves out everything about CUDA, as that of torchvision does on a machine without a GPU."""
    return build(
        {
            "extension.yaml": ("assume_cuda: true ", "# no assume_cuda: "),
            "setup.py": ('sources = ["csrc/ops.cpp", "csrc/cuda_binding.cpp"]', 'sources = ["csrc/ops.cpp"]'),
        }
    )


def test_build_refuses_a_wheel_without_cuda_kernels(without_cuda: Built) -> None:
    """It imports, and its ops work on the CPU: only the dispatch keys show the fault."""
    assert without_cuda.ran.code == 1, without_cuda.ran.all
    assert not list(without_cuda.dist.glob("*.whl"))
    says(
        without_cuda.ran.all,
        'dispatch toy_attn::forward: no kernel for CUDA: a call raises "Could not run '
        "'toy_attn::forward' with arguments from the 'CUDA' backend\"",
        PAGE,
    )
    says(without_cuda.ran.all, "Build the library with the CUDA sources.", PAGE)


def test_the_call_fails_as_users_saw_it(without_cuda: Built, store: Path, environment: Path, tmp_path: Path) -> None:
    python = make_environment(store, tmp_path / "env", TORCH, PYTHON, [without_cuda.wheel])
    done = run(python, "-c", CALL)
    assert done.code != 0
    says(
        done.err,
        "NotImplementedError: Could not run 'toy_attn::forward' with arguments from the 'CUDA' backend.",
        PAGE,
    )
    sound = run(environment, "-c", CALL)  # the kernel exists, and refuses tensors of the CPU
    assert "Could not run" not in sound.all


def test_doctor_names_the_torchvision_that_belongs_to_this_torch(
    store: Path, tmp_path: Path, doctor: Callable[..., Ran]
) -> None:
    python = make_environment(store, tmp_path / "env", TORCH, PYTHON, [])
    for version, pairs in (("0.25.0", False), ("0.26.0", True)):
        run(find_uv(), "pip", "install", "--no-deps", "--python", python, f"torchvision=={version}").ok()
        done = doctor(python, "A100")
        assert done.code == (0 if pairs else 1), done.all
        if not pairs:
            says(done.out, "torchvision 0.25.0 requires torch==2.10.0, but torch 2.11.0+cu130 is installed", PAGE)
            says(done.out, "torchvision==0.26.0 torch==2.11.0", PAGE)
