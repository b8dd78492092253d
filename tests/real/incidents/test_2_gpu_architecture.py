"""Incident 2: a GPU that the wheel has no code for, or that the runtime compiler of torch's CUDA does not know."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.wheels.toolchain.environments import Environment
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import Farm, Ran, run
from tests.real.doctor.make import Patient
from tests.real.incidents.conftest import PYTHON, Built, project, says

pytestmark = [pytest.mark.network, pytest.mark.slow]

PAGE = "gpu-architecture.md"

#: Compiles a kernel with the runtime compiler in argv[1] for the GPU in argv[2], and prints its log. Needs no GPU.
NVRTC = """
import ctypes, sys
nvrtc = ctypes.CDLL(sys.argv[1])
program, size = ctypes.c_void_p(), ctypes.c_size_t()
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), b"__global__ void k() {}", b"k.cu", 0, None, None) == 0
options = (ctypes.c_char_p * 1)(f"--gpu-architecture={sys.argv[2]}".encode())
failed = nvrtc.nvrtcCompileProgram(program, 1, options)
assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
log = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetProgramLog(program, log) == 0
print(log.value.decode())
sys.exit(failed)
"""


def compiled_by_nvrtc(packages: Path, arch: str) -> Ran:
    """Let the NVRTC in a folder of packages compile a kernel for a GPU architecture."""
    (library,) = packages.glob("nvidia/*/lib/libnvrtc.so.1[23]")
    env = {"LD_LIBRARY_PATH": str(library.parent)}  # where it finds its own second library
    return run(sys.executable, "-c", NVRTC, library, arch, env=env)


@pytest.fixture(scope="module")
def nvrtc_12_8(tmp_path_factory: pytest.TempPathFactory, python_of: Callable[[str], Path]) -> Path:
    """A folder with the NVRTC of CUDA 12.8, from the package index."""
    folder = tmp_path_factory.mktemp("nvrtc") / "packages"
    wanted = ("--no-deps", "--target", folder, "nvidia-cuda-nvrtc-cu12==12.8.93")
    run(find_uv(), "pip", "install", "--python", python_of(PYTHON), *wanted).ok()
    return folder


def test_verify_finds_a_gpu_without_code(sound: Built, verify: Callable[..., Ran]) -> None:
    done = verify(sound.wheel, "--gpu", "H100")
    assert done.code == 1, done.all
    says(
        done.out,
        "H100 (9.0) cannot run toy_attn/_C.cpython-312-x86_64-linux-gnu.so, which has sm_80: build for 9.0, or with "
        "PTX of an older architecture",
        PAGE,
    )
    done = verify(sound.wheel, "--gpu", "A100").ok()
    assert "native on A100 (8.0)" in done.out


def test_doctor_finds_the_installed_wheel(environment: Path, doctor: Callable[..., Ran]) -> None:
    done = doctor(environment, "H100")
    assert done.code == 1, done.all
    says(done.out, "has no code for the H100 (sm_90): toy_attn/_C.cpython-312-x86_64-linux-gnu.so has sm_80", PAGE)
    says(done.out, "its ops fail with `no kernel image is available for execution on the device`", PAGE)
    assert "TORCH_CUDA_ARCH_LIST=9.0" in done.out or "--arch 9.0" in done.out, "with nvcc, and without"
    doctor(environment, "A100").ok()


def test_nvrtc_says_what_users_saw(nvrtc_12_8: Path, with_torch: Environment) -> None:
    """The real NVRTC of CUDA 12.8 does not know the B300, that of CUDA 13.0 does: as doctor's cure says."""
    refused = compiled_by_nvrtc(nvrtc_12_8, "sm_103")
    assert refused.code != 0
    says(refused.out, "nvrtc: error: invalid value for --gpu-architecture (-arch)", PAGE)
    for packages, arch in ((nvrtc_12_8, "sm_100"), (with_torch.site_packages, "sm_103")):
        compiled_by_nvrtc(packages, arch).ok()


def test_doctor_finds_a_gpu_that_nvrtc_does_not_know(patient: Patient, doctor: Callable[..., Ran]) -> None:
    """The torch of this environment is a stand-in: only the names, versions and GPU code of its files count."""
    patient.torch("2.11.0+cu128", "12.8", channel="whl/cu128")
    patient.torch("2.11.0+cu130", "13.0", channel="whl/cu130")
    patient.install("--index", patient.index.torch_index.format(variant="cu128"), "torch==2.11.0+cu128")
    done = doctor(patient.python, "B300")
    assert done.code == 1, done.all
    says(done.out, "the runtime compiler of CUDA 12.8 in torch 2.11.0+cu128 does not know the B300 (sm_103)", PAGE)
    says(done.out, "some ops fail with `nvrtc: error: invalid value for --gpu-architecture (-arch)`", PAGE)
    says(done.out, "torch==2.11.0+cu130", PAGE)
    assert doctor(patient.python, "B200").code == 0

    patient.gpus("B300", driver="590.10")
    patient.heal("gpu-unknown-to-nvrtc")


def test_plan_refuses_an_architecture_that_the_toolkit_lacks(farm: Farm, tmp_path: Path) -> None:
    matrix = project(tmp_path, "toy_attn")
    options = ("--matrix", matrix, "--torch", "2.5", "--cuda", "12.4")
    matrix.write_text(matrix.read_text().replace("torch: [2.11.0]", "torch: [2.5]").replace("[13.0]", "[12.4]"))
    done = farm("plan", *options, "--arch", "10.0")
    assert done.code == 3, done.all
    says(done.all, "CUDA 12.4 cannot compile for sm_100; the first toolkit that can is 12.8", PAGE)
    farm("plan", *options, "--arch", "9.0").ok()
