"""The five incidents: each fault is made for real with two small extensions, and a command stops it."""

import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.errors import Exit
from builder.formats import sha256_of
from builder.matrix.axes import Cuda, Torch
from builder.proof import Check
from builder.proofs.inventory import Release, shelf_of
from builder.proofs.static.symbol_table import collect_symbols
from builder.store import Store
from builder.wheelfile.facts import read_facts
from builder.wheels.toolchain.environments import Environment
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import ROOT, Farm, Ran, lacking, run, wheel_of
from tests.fixtures.gate_env import make_environment, torch_environment
from tests.real.doctor.conftest import Patient, patient
from tests.unit.loopback import pure_wheel, record_of

__all__ = ["patient"]  # a fixture: an environment with a stand-in of torch

HERE = Path(__file__).parent
PAGES = ROOT / "docs" / "incidents"

TORCH, CUDA, PYTHON = "2.11.0", "13.0", "3.12"
CELL = ("--torch", TORCH, "--cuda", CUDA, "--python", PYTHON)
#: A machine without a GPU, also where there is one.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}

MATRIX = f"torch: [{TORCH}]\ncuda: [{CUDA}]\npython: [{PYTHON}]\narchs: [8.0]\nextensions: [{{name}}]\n"


def one_line(text: str) -> str:
    """The text with single spaces, so that the width of a terminal does not matter."""
    return " ".join(text.split())


def says(output: str, sentence: str, page: str) -> None:
    """A command printed this sentence, and the page of the incident shows the same sentence."""
    assert one_line(sentence) in one_line(output), output
    text = one_line((PAGES / page).read_text(encoding="utf-8"))
    assert one_line(sentence) in text, f"docs/incidents/{page} does not have: {sentence}"


def project(folder: Path, name: str, edits: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """A project with a copy of one extension; `edits` replaces a text in a file. Returns its matrix.yaml."""
    shutil.copytree(HERE / name, folder / name)
    for file, (old, new) in (edits or {}).items():
        path = folder / name / file
        text = path.read_text(encoding="utf-8")
        assert old in text, path
        path.write_text(text.replace(old, new), encoding="utf-8")
    matrix = folder / "matrix.yaml"
    matrix.write_text(MATRIX.format(name=name), encoding="utf-8")
    return matrix


def derived(wheel: Path, folder: Path, changes: Mapping[str, bytes]) -> Path:
    """A wheel with other files and a correct RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | dict(changes)
    record = next(name for name in members if name.endswith("/RECORD"))
    del members[record]
    members[record] = record_of(members, record).encode()
    folder.mkdir()
    with zipfile.ZipFile(folder / wheel.name, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder / wheel.name


@dataclass(frozen=True)
class Built:
    """A `buildfarm build` of toy_attn that ended, and the wheel that it made or refused."""

    ran: Ran
    wheel: Path
    dist: Path


Build = Callable[..., Built]


@pytest.fixture(scope="session")
def build(farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Runs `buildfarm build` for toy_attn with these edits, on a machine without a GPU."""

    def run(edits: Mapping[str, tuple[str, str]] | None = None) -> Built:
        folder = tmp_path_factory.mktemp("incident")
        project(folder, "toy_attn", edits)
        done = farm("build", "--executor", "local", "--store", store, cwd=folder, env=NO_GPU)
        if done.code == Exit.TOOL_MISSING:
            lacking(done.err)
        refused = re.search(r"the refused wheel is (\S+\.whl)", done.all)
        assert refused or done.code == 0, done.all
        return Built(done, Path(refused[1]) if refused else wheel_of(folder / "dist"), folder / "dist")

    return run


@pytest.fixture(scope="session")
def sound(build: Build) -> Built:
    """The sound wheel of toy_attn, with code for sm_80 only."""
    made = build()
    assert made.ran.code == 0, made.ran.all
    return made


@pytest.fixture(scope="session")
def environment(store: Path, sound: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with torch and the sound wheel."""
    folder = tmp_path_factory.mktemp("incident-environment") / "env"
    return make_environment(store, folder, TORCH, PYTHON, [sound.wheel])


@pytest.fixture(scope="session")
def with_torch(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment with torch in the store."""
    return torch_environment(store, TORCH, PYTHON, tmp_path_factory.mktemp("incident-torch") / "log")


@pytest.fixture(scope="session")
def verify(farm: Farm, with_torch: Environment, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ran]:
    """Runs `buildfarm verify` with an inventory of the real torch."""
    own = tmp_path_factory.mktemp("incident-inventory")
    release = Release(Torch.parse(TORCH), Cuda.parse(CUDA), os.uname().machine)
    shelf_of(Store(own)).add(release, collect_symbols(with_torch.site_packages))

    def run(*words: str | Path) -> Ran:
        return farm("verify", *words, "--store", own)

    return run


@pytest.fixture
def doctor(farm: Farm) -> Callable[..., Ran]:
    """Runs `buildfarm doctor` on an environment, for a machine with this GPU and driver."""

    def run(python: Path, gpu: str, driver: str = "590.10") -> Ran:
        return farm("doctor", "--python", python, "--gpu", gpu, "--driver", driver)

    return run


def smoked(farm: Farm, store: Path, wheel: Path, matrix: Path, *words: str | Path, links: Path | None = None) -> Ran:
    """Run `buildfarm smoke` on a wheel with the cases of a project; packages in the folder `links` can be installed."""
    env = {**NO_GPU, **({"UV_FIND_LINKS": str(links)} if links else {})}
    options = ("--matrix", matrix, *CELL, "--store", store, *words)
    done = farm("smoke", wheel, *options, cwd=matrix.parent, env=env)
    if done.code == Exit.TOOL_MISSING:
        lacking(done.err)
    return done


pytestmark = [pytest.mark.network, pytest.mark.slow]

#: Incident 1: a library without its CUDA sources fails with `undefined symbol` at import.
SYMBOL_PAGE = "undefined-symbol.md"
READABLE = "toy_attn_cuda_forward(at::Tensor const&, at::Tensor const&)"
MANGLED = "_Z21toy_attn_cuda_forwardRKN2at6TensorES2_"


@pytest.fixture(scope="module")
def broken(build: Build) -> Built:
    """The same source, built by a recipe that does not say that setup.py asks for a GPU."""
    return build({"extension.yaml": ("assume_cuda: true ", "# no assume_cuda: ")})


def test_build_refuses_the_wheel(broken: Built) -> None:
    assert broken.ran.code == 1, broken.ran.all
    assert not list(broken.dist.glob("*.whl"))
    says(
        broken.ran.all,
        "FAILED payload no GPU code in _C.cpython-312-x86_64-linux-gnu.so: csrc/forward.cu was never compiled (is it "
        "in `sources` of setup.py?); setup.py calls torch.cuda.is_available(), which is False during a build without a "
        "GPU: set `assume_cuda: true` in the recipe",
        SYMBOL_PAGE,
    )


def test_the_import_of_the_wheel_fails_as_users_saw_it(broken: Built) -> None:
    says(broken.ran.all, "import of toy_attn failed: ImportError:", SYMBOL_PAGE)
    says(broken.ran.all, f"undefined symbol: {MANGLED}", SYMBOL_PAGE)


def test_verify_names_the_symbol_and_the_cause(broken: Built, verify: Callable[..., Ran]) -> None:
    done = verify(broken.wheel)
    assert done.code == 1, done.all
    says(
        done.out,
        f"undefined symbol {READABLE}: no library of torch, CUDA or the system defines the symbol, and the wheel "
        "contains no GPU code: the build left out the CUDA sources; setup.py probably called "
        "torch.cuda.is_available() on a machine without a GPU; build with FORCE_CUDA=1, or set `assume_cuda: true` in "
        "the recipe",
        SYMBOL_PAGE,
    )


def test_the_build_depends_on_no_gpu(sound: Built, verify: Callable[..., Ran]) -> None:
    """The sound twin: `assume_cuda` answers the question of setup.py, and nvcc compiles the CUDA source."""
    (library,) = read_facts(sound.wheel).libraries
    assert library.sass == ("sm_80",)
    (entry,) = json.loads((sound.dist / "report.json").read_text())["builds"]
    failed = [proof for proof in entry["proofs"] if proof["verdict"] == "failed"]
    assert failed == []
    verdicts = {proof["check"]: proof["verdict"] for proof in entry["proofs"]}
    assert {verdicts[check] for check in ("payload", "linkage", "import", "loaded", "dispatch")} == {"passed"}
    verify(sound.wheel).ok()


#: Incident 2: a GPU that the wheel has no code for, or that the runtime compiler of torch's CUDA does not know.
GPU_PAGE = "gpu-architecture.md"

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


def test_verify_finds_a_gpu_without_code(sound: Built, verify: Callable[..., Ran]) -> None:
    done = verify(sound.wheel, "--gpu", "H100")
    assert done.code == 1, done.all
    says(
        done.out,
        "H100 (9.0) cannot run toy_attn/_C.cpython-312-x86_64-linux-gnu.so, which has sm_80: build for 9.0, or with "
        "PTX of an older architecture",
        GPU_PAGE,
    )
    done = verify(sound.wheel, "--gpu", "A100").ok()
    assert "native on A100 (8.0)" in done.out


def test_doctor_finds_the_installed_wheel(environment: Path, doctor: Callable[..., Ran]) -> None:
    done = doctor(environment, "H100")
    assert done.code == 1, done.all
    says(done.out, "has no code for the H100 (sm_90): toy_attn/_C.cpython-312-x86_64-linux-gnu.so has sm_80", GPU_PAGE)
    says(done.out, "its ops fail with `no kernel image is available for execution on the device`", GPU_PAGE)
    assert "TORCH_CUDA_ARCH_LIST=9.0" in done.out or "--arch 9.0" in done.out, "with nvcc, and without"
    doctor(environment, "A100").ok()


def test_nvrtc_says_what_users_saw(with_torch: Environment, python_of: Callable[[str], Path], tmp_path: Path) -> None:
    """The real NVRTC of CUDA 12.8 does not know the B300, that of CUDA 13.0 does: as doctor's cure says."""
    wanted = ("--no-deps", "--target", tmp_path, "nvidia-cuda-nvrtc-cu12==12.8.93")
    run(find_uv(), "pip", "install", "--python", python_of(PYTHON), *wanted).ok()
    refused = compiled_by_nvrtc(tmp_path, "sm_103")
    assert refused.code != 0
    says(refused.out, "nvrtc: error: invalid value for --gpu-architecture (-arch)", GPU_PAGE)
    for packages, arch in ((tmp_path, "sm_100"), (with_torch.site_packages, "sm_103")):
        compiled_by_nvrtc(packages, arch).ok()


def test_doctor_finds_a_gpu_that_nvrtc_does_not_know(patient: Patient, doctor: Callable[..., Ran]) -> None:
    """The torch of this environment is a stand-in: only the names, versions and GPU code of its files count."""
    patient.torch("2.11.0+cu128", "12.8", channel="whl/cu128")
    patient.torch("2.11.0+cu130", "13.0", channel="whl/cu130")
    patient.install("--index", patient.index.torch_index.format(variant="cu128"), "torch==2.11.0+cu128")
    done = doctor(patient.python, "B300")
    assert done.code == 1, done.all
    says(done.out, "the runtime compiler of CUDA 12.8 in torch 2.11.0+cu128 does not know the B300 (sm_103)", GPU_PAGE)
    says(done.out, "some ops fail with `nvrtc: error: invalid value for --gpu-architecture (-arch)`", GPU_PAGE)
    says(done.out, "torch==2.11.0+cu130", GPU_PAGE)
    assert doctor(patient.python, "B200").code == 0

    patient.gpus("B300", driver="590.10")
    patient.heal("gpu-unknown-to-nvrtc")


def test_plan_refuses_an_architecture_that_the_toolkit_lacks(farm: Farm, tmp_path: Path) -> None:
    matrix = project(tmp_path, "toy_attn")
    options = ("--matrix", matrix, "--torch", "2.5", "--cuda", "12.4")
    matrix.write_text(matrix.read_text().replace("torch: [2.11.0]", "torch: [2.5]").replace("[13.0]", "[12.4]"))
    done = farm("plan", *options, "--arch", "10.0")
    assert done.code == 3, done.all
    says(done.all, "CUDA 12.4 cannot compile for sm_100; the first toolkit that can is 12.8", GPU_PAGE)
    farm("plan", *options, "--arch", "9.0").ok()


#: Incident 3: torchvision of another torch, and an extension built for the CPU only.
KERNELS_PAGE = "missing-cuda-kernels.md"

#: Asks the dispatcher for the CUDA kernel of the op, as a call with CUDA tensors does. Needs no GPU.
CALL_ON_CUDA = """
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
        KERNELS_PAGE,
    )
    says(without_cuda.ran.all, "Build the library with the CUDA sources.", KERNELS_PAGE)


def test_a_call_on_cuda_fails_as_users_saw_it(
    without_cuda: Built, store: Path, environment: Path, tmp_path: Path
) -> None:
    python = make_environment(store, tmp_path / "env", TORCH, PYTHON, [without_cuda.wheel])
    done = run(python, "-c", CALL_ON_CUDA)
    assert done.code != 0
    says(
        done.err,
        "NotImplementedError: Could not run 'toy_attn::forward' with arguments from the 'CUDA' backend.",
        KERNELS_PAGE,
    )
    sound = run(environment, "-c", CALL_ON_CUDA)  # the kernel exists, and refuses tensors of the CPU
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
            says(
                done.out, "torchvision 0.25.0 requires torch==2.10.0, but torch 2.11.0+cu130 is installed", KERNELS_PAGE
            )
            says(done.out, "torchvision==0.26.0 torch==2.11.0", KERNELS_PAGE)


#: Incident 4: two packages that crash the process in one import order.
ORDER_PAGE = "import-order.md"
SOURCE = HERE / "toy_reader"


def linked_wheel(
    folder: Path, package: str, library: str, source: str, *flags: str, requires: tuple[str, ...] = ()
) -> Path:
    """A package with one library, compiled now."""
    made = folder / library
    folder.mkdir(exist_ok=True)
    run("cc", "-g", "-O1", "-shared", "-fPIC", *flags, SOURCE / source, "-o", made).ok()
    files: dict[str, str | bytes] = {
        f"{package}/__init__.py": (SOURCE / package / "__init__.py").read_bytes(),
        f"{package}/{library}": made.read_bytes(),
    }
    return pure_wheel(folder, package, "1.0", files, requires=requires, tag="py3-none-linux_x86_64")


def reader(folder: Path, *flags: str) -> Path:
    """The extension; `flags` go to the linker."""
    return linked_wheel(folder, "toy_reader", "libreader.so", "reader.c", *flags, requires=("torch",))


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of the companion, from which uv installs."""
    folder = tmp_path_factory.mktemp("links")
    linked_wheel(folder, "toy_codec", "libcodec.so", "codec_1.c")
    return folder


def test_the_shell_shows_only_a_segmentation_fault(links: Path, store: Path, tmp_path: Path) -> None:
    wheels = [reader(tmp_path / "reader"), *links.glob("*.whl")]
    python = make_environment(store, tmp_path / "env", TORCH, PYTHON, wheels)
    for order, crashes in (("toy_codec, toy_reader", True), ("toy_reader, toy_codec", False)):
        done = run("bash", "-c", f"'{python}' -c 'import {order}'; echo ended with $?")
        assert ("ended with 139" in done.out) is crashes, done.all
    page = (PAGES / ORDER_PAGE).read_text(encoding="utf-8")
    assert "Segmentation fault" in page


def test_smoke_names_the_signal_and_both_orders(links: Path, tmp_path: Path, farm: Farm, store: Path) -> None:
    matrix = project(tmp_path, "toy_reader")
    done = smoked(farm, store, reader(tmp_path / "crashes"), matrix, links=links)
    assert done.code == 1, done.all
    says(
        done.out,
        "import-order toy_codec 1.0, then toy_reader 1.0: import toy_reader dies with SIGSEGV (a segmentation fault) "
        "in reader_open of libreader.so, at <module> (__init__.py:9). The failure occurs only if toy_codec 1.0 is "
        "imported before toy_reader: import toy_reader first; the order torch, toy_reader, toy_codec works",
        ORDER_PAGE,
    )


def test_smoke_passes_the_library_that_keeps_its_symbols(links: Path, tmp_path: Path, farm: Farm, store: Path) -> None:
    """The sound twin, after the crash: the machine survived it."""
    matrix = project(tmp_path, "toy_reader")
    done = smoked(farm, store, reader(tmp_path / "sound", "-Wl,-Bsymbolic"), matrix, links=links).ok()
    assert "toy_codec is not installed" not in one_line(done.out)


#: Incident 5: an op whose fake kernel meets tensors on two devices.
FAKE_PAGE = "fake-tensor-devices.md"
OTHER = HERE / "toy_attn" / "other"

#: Calls the op as torch.export does: with a value on CUDA, and a weight on the CPU. Needs no GPU.
CALL_ON_TWO_DEVICES = """
import torch, toy_attn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
mode = FakeTensorMode()
value, weight = (FakeTensor(mode, torch.empty(2, device="meta"), torch.device(name)) for name in ("cuda:0", "cpu"))
with mode:
    torch.ops.toy_attn.meta_key(value, weight)
"""


@pytest.fixture(scope="module")
def with_three_fakes(sound: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sound wheel with three more ops, two of them with a defect."""
    folder = tmp_path_factory.mktemp("fakes") / "wheel"
    return derived(sound.wheel, folder, {"toy_attn/__init__.py": (OTHER / "three_fakes.py").read_bytes()})


def test_a_call_on_two_devices_fails_as_users_saw_it(with_three_fakes: Path, store: Path, tmp_path: Path) -> None:
    python = make_environment(store, tmp_path / "env", TORCH, PYTHON, [with_three_fakes])
    done = run(python, "-c", CALL_ON_TWO_DEVICES)
    assert done.code != 0
    says(
        done.err,
        "RuntimeError: Unhandled FakeTensor Device Propagation for toy_attn.meta_key.default, found two different "
        "devices cuda:0, cpu",
        FAKE_PAGE,
    )


@pytest.fixture(scope="module")
def judged(with_three_fakes: Path, farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One `buildfarm smoke` of the four ops."""
    folder = tmp_path_factory.mktemp("fakes-project")
    matrix = project(folder, "toy_attn")
    (folder / "toy_attn" / "cases.py").write_bytes((OTHER / "three_fakes_cases.py").read_bytes())
    return smoked(farm, store, with_three_fakes, matrix)


def test_smoke_finds_both_fake_kernels_without_a_gpu(judged: Ran) -> None:
    done = judged
    assert done.code == 1, done.all
    says(
        done.out,
        "devices toy_attn::meta_key (plain): with 'weight' on the CPU, which the case allows, the op raises "
        "RuntimeError: Unhandled FakeTensor Device Propagation for toy_attn.meta_key.default, found two different "
        "devices cuda:0, cpu",
        FAKE_PAGE,
    )
    says(
        done.out,
        "devices toy_attn::unchecked (plain): the fake kernel accepts 'value' on the CPU although the other tensors "
        "are on CUDA",
        FAKE_PAGE,
    )


@pytest.mark.usefixtures("judged")
def test_the_sound_ops_pass(with_three_fakes: Path, store: Path, sound: Built) -> None:
    """`forward` refuses tensors on two devices. `mixed` accepts a weight on the CPU, and its fake kernel does too."""
    proofs = Store(store).proofs(sha256_of(with_three_fakes))
    outcomes = [one for proof in proofs if proof.check is Check.DEVICES for one in proof.evidence["outcomes"]]
    verdicts = {one["op"]: one["verdict"] for one in outcomes if one["case"] == "plain"}
    wrong = {"toy_attn::meta_key": "failed", "toy_attn::unchecked": "failed"}
    assert verdicts == {"toy_attn::forward": "passed", "toy_attn::mixed": "passed", **wrong}
    (entry,) = json.loads((sound.dist / "report.json").read_text())["builds"]
    assert {proof["verdict"] for proof in entry["proofs"] if proof["check"] == "devices"} == {"passed"}
