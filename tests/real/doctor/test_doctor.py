"""`doctor` in broken environments: it names the fault, its command mends it, and the JSON for a bug report."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from builder.__main__ import run_command
from builder.errors import Exit
from tests.fixtures.compiled import compiled
from tests.real.doctor.conftest import Patient, gpu_source, sdist, torch_libraries

#: The Python of these environments: the one that runs the tests.
PYTHON = "{}.{}".format(*sys.version_info)
#: A function of torch, as C++ names it.
FIRST = "_ZN5torch5firstEv"


def test_a_sound_environment_has_no_fault(patient: Patient) -> None:
    patient.torch()
    patient.wheel("torchvision", "0.26.0", requires=["torch==2.11.0"])
    patient.install("torch", "torchvision")
    code, data = patient.doctor()
    assert (code, data["faults"]) == (0, 0)
    assert data["torches"][0]["version"] == "2.11.0"


@pytest.fixture
def extension(patient: Patient, tmp_path: Path) -> bytes:
    """A library of an extension for the sm_80 and a torch whose libtorch_cpu has `_ZN5torch5firstEv`."""
    libraries = torch_libraries(tmp_path / "built-with", [80], FIRST)
    source = f"int {FIRST}(void);\nint op(void) {{ return {FIRST}(); }}\n"
    assert libraries
    (tmp_path / "code.s").write_text(gpu_source(80))
    flags = [str(tmp_path / "code.s"), f"-L{tmp_path / 'built-with'}", "-ltorch_cpu"]
    for tool in ("setuptools", "wheel", "ninja"):
        patient.index.add(tool, "1")
    sdist(patient.index.root / "default", "ops", "1.0", [80, 120])
    return compiled(tmp_path, source, *flags, name="_C.so", language="c").read_bytes()


def test_an_extension_without_code_for_the_gpu(patient: Patient, extension: bytes) -> None:
    patient.torch(symbol=FIRST)
    patient.wheel("ops", "1.0", {"ops/_C.so": extension, "ops/__init__.py": ""}, requires=["torch"])
    patient.install("torch", "ops")
    patient.gpus("A100")
    assert patient.doctor()[0] == 0
    patient.gpus("RTX 5090")
    what = "ops 1.0 has no code for the RTX 5090 (sm_120): ops/_C.so has sm_80"
    fault = patient.diagnose("extension-without-code-for-gpu", what)
    build = f"buildfarm build ops==1.0 --torch 2.11.0 --cuda 13.0 --python {PYTHON} --arch 12.0"
    assert fault["cure"] == [build], "pip and uv would compile it without its kernels"
    assert fault["advice"].startswith("without nvcc of CUDA 13.0, which is not here, pip and uv compile the package")
    patient.nvcc("13.0.88")
    patient.heal("extension-without-code-for-gpu", cure="TORCH_CUDA_ARCH_LIST=12.0")


def test_an_extension_for_newer_gpus_only(patient: Patient, extension: bytes, tmp_path: Path) -> None:
    """It is useful if another GPU of the machine is newer, or if it has ops without GPU code."""
    patient.torch(symbol=FIRST)
    patient.wheel("ops", "1.0", {"ops/_C.so": extension, "ops/__init__.py": ""}, requires=["torch"])
    plain = ["-L", str(tmp_path / "built-with"), "-ltorch_cpu"]
    source = f"int {FIRST}(void);\nint op(void) {{ return {FIRST}(); }}\n"
    cpu = compiled(tmp_path, source, *plain, name="_P.so", language="c")
    files: dict[str, str | bytes] = {"ops/_C.so": extension, "ops/_P.so": cpu.read_bytes(), "ops/__init__.py": ""}
    patient.wheel("ops", "2.0", files, requires=["torch"])
    patient.install("torch", "ops==1.0")
    patient.gpus("T4")
    what = "ops 1.0 has no code for the T4 (sm_75): ops/_C.so has sm_80"
    fault = patient.diagnose("extension-without-code-for-gpu", what)
    assert fault["cure"][0].endswith("--arch 7.5")
    patient.gpus("T4", "A100")
    assert patient.doctor()[0] == 0
    patient.gpus("T4")
    patient.install("ops==2.0")
    assert patient.doctor()[0] == 0


def test_an_extension_that_was_linked_against_another_torch(patient: Patient, extension: bytes) -> None:
    patient.torch(symbol="_ZN5torch6secondEv")
    patient.wheel("ops", "1.0", {"ops/_C.so": extension, "ops/__init__.py": ""}, requires=["torch"])
    patient.install("torch", "ops")
    patient.gpus("A100")
    fault = patient.diagnose("extension-of-another-torch", "ops/_C.so has the undefined symbol torch::first()")
    assert fault["cure"] == [f"buildfarm build ops==1.0 --torch 2.11.0 --cuda 13.0 --python {PYTHON} --arch 8.0"]
    patient.nvcc("13.0.88")
    assert f"`undefined symbol: {FIRST}`" in patient.heal("extension-of-another-torch")["why"]


def test_a_library_that_calls_torch_without_linking_it(patient: Patient, tmp_path: Path) -> None:
    """cuda-core 1.2.0 has one. Its package loads torch's libraries with global scope before."""
    patient.torch(symbol=FIRST)
    source = f"int {FIRST}(void);\nint op(void) {{ return {FIRST}(); }}\n"
    library = compiled(tmp_path, source, name="_bridge.so", language="c").read_bytes()
    patient.wheel("bridge", "1.0", {"bridge/_bridge.so": library, "bridge/__init__.py": ""})
    patient.install("torch", "bridge")
    patient.gpus("A100")
    assert patient.doctor()[0] == 0


def test_two_torches_on_the_path(patient: Patient, tmp_path: Path) -> None:
    patient.torch()
    patient.torch("2.10.0", "12.8")
    patient.install("torch==2.11.0")
    patient.install("--target", str(tmp_path / "other"), "torch==2.10.0")
    patient.variables["PYTHONPATH"] = str(tmp_path / "other")
    what = f"2.10.0 in {tmp_path / 'other'}; 2.11.0 in {patient.site_packages}"
    patient.heal("two-torches", what, cure="unset PYTHONPATH")


def test_nvidia_packages_of_two_cuda_majors(patient: Patient) -> None:
    library = "nvidia/cudnn/lib/libcudnn.so.9"
    for major in (12, 13):
        patient.wheel(f"nvidia_cudnn_cu{major}", "9.19.0", {library: f"cuDNN for CUDA {major}"})
    patient.wheel("nvidia_cublas_cu12", "12.8.4", {"nvidia/cublas/lib/libcublas.so.12": "cuBLAS"})
    patient.has_torch(requires=["nvidia-cudnn-cu13==9.19.0"])
    patient.install("nvidia-cudnn-cu12", "nvidia-cublas-cu12")
    assert (patient.site_packages / library).read_text() == "cuDNN for CUDA 12"
    patient.heal("two-cuda-majors", "nvidia-cublas-cu12 12.8.4, nvidia-cudnn-cu12 9.19.0")
    assert (patient.site_packages / library).read_text() == "cuDNN for CUDA 13"


def test_ld_library_path_has_a_library_of_torch(patient: Patient, tmp_path: Path) -> None:
    patient.wheel("nvidia_nccl_cu13", "2.28", {"nvidia/nccl/lib/libnccl.so.2": "the right one"})
    patient.has_torch(requires=["nvidia-nccl-cu13"])
    other, unrelated = tmp_path / "cuda" / "lib64", tmp_path / "unrelated"
    for folder, name in ((other, "libnccl.so.2"), (unrelated, "libother.so.1")):
        folder.mkdir(parents=True)
        (folder / name).write_text("another one")
    patient.variables["LD_LIBRARY_PATH"] = f"{other}:{unrelated}"
    note = patient.remark("hidden-libraries")
    assert f"LD_LIBRARY_PATH names {other}, whose libnccl.so.2" in note["what"]
    assert note["cure"] == [f"export LD_LIBRARY_PATH={unrelated}"]


def test_a_driver_that_is_too_old(patient: Patient) -> None:
    patient.torch()
    patient.torch("2.11.0+cu128", "12.8", channel="whl/cu128", archs=(80, 90))
    patient.wheel("torchvision", "0.26.0", requires=["torch==2.11.0"])
    patient.wheel("torchvision", "0.26.0+cu128", requires=["torch==2.11.0"], channel="whl/cu128")
    patient.install("torch", "torchvision")
    patient.gpus("H100", driver="550.54.15")
    what = "NVIDIA's driver 550.54.15 is too old for torch 2.11.0: CUDA 13.0 needs driver 580.65.06"
    patient.heal("driver-too-old", what, cure="torch==2.11.0+cu128 torchvision==0.26.0+cu128")


def test_a_torchvision_without_cuda_beside_a_torch_with_cuda(patient: Patient, tmp_path: Path) -> None:
    library = compiled(tmp_path, "int nms(void) { return 1; }\n", name="cpu.so", language="c").read_bytes()
    cuda = compiled(tmp_path, gpu_source(90), name="cuda.so", language="assembler").read_bytes()
    patient.torch()
    patient.wheel("torchvision", "0.26.0", {"torchvision/_C.so": library}, requires=["torch==2.11.0"])
    patient.wheel(
        "torchvision", "0.26.0+cu130", {"torchvision/_C.so": cuda}, requires=["torch==2.11.0"], channel="whl/cu130"
    )
    patient.install("torch", "torchvision")
    what = "torchvision 0.26.0 is for cpu, but torch 2.11.0 is for cu130"
    fault = patient.heal("companion-of-another-cuda", what)
    assert "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend" in fault["why"]


def test_cuda_packages_that_torch_and_an_extra_of_cuda_toolkit_require_are_missing(patient: Patient) -> None:
    patient.wheel("nvidia_cudnn_cu13", "9.19.0", {"nvidia/cudnn/lib/libcudnn.so.9": "cuDNN"})
    patient.wheel("nvidia_cublas", "13.1.0.3", {"nvidia/cu13/lib/libcublas.so.13": "cuBLAS"})
    extras = ["nvidia-cublas==13.1.0.3.*; extra == 'cublas'", "x; extra == 'x'"]
    patient.wheel("cuda_toolkit", "13.0.2", requires=extras)
    linux = "nvidia-cudnn-cu13==9.19.0; platform_system == 'Linux'"
    patient.torch(requires=[linux, "cuda-toolkit[cublas]==13.0.2"])
    patient.install("--no-deps", "torch", "cuda-toolkit")
    patient.heal("missing-requirement-of-torch", "torch 2.11.0 requires nvidia-cudnn-cu13, nvidia-cublas, which")


def test_a_package_of_another_cuda_took_files_with_it(patient: Patient) -> None:
    for major in (12, 13):
        patient.wheel(f"nvidia_cudnn_cu{major}", "9.19.0", {"nvidia/cudnn/lib/libcudnn.so.9": f"cuDNN {major}"})
    patient.torch(requires=["nvidia-cudnn-cu13==9.19.0"])
    patient.install("torch", "nvidia-cudnn-cu12")
    patient.uninstall("nvidia-cudnn-cu12")
    patient.heal("missing-libraries", "libraries of nvidia-cudnn-cu13 9.19.0 were deleted: libcudnn.so.9")
    (patient.site_packages / "torch" / "lib" / "libtorch_cpu.so").unlink()
    patient.heal("missing-libraries", "libraries of torch 2.11.0 were deleted")


def test_an_interrupted_update_left_two_records_of_torch(patient: Patient) -> None:
    patient.has_torch()
    old = patient.site_packages / "torch-2.10.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0\n")
    (old / "RECORD").write_text("torch-2.10.0.dist-info/METADATA,,\ntorch-2.10.0.dist-info/RECORD,,\n")
    patient.heal("two-records-of-torch", "has metadata of torch 2.10.0, 2.11.0, but only the files of 2.11.0")


@pytest.mark.parametrize("part", [0.5, 0], ids=["half", "empty"])
def test_a_damaged_library_of_an_extension(patient: Patient, tmp_path: Path, part: float) -> None:
    library = compiled(tmp_path, gpu_source(80), name="_C.so", language="assembler").read_bytes()
    patient.torch()
    patient.wheel("ops", "1.0", {"ops/_C.so": library}, requires=["torch"])
    patient.wheel("unrelated", "1.0", {"unrelated/_C.so": library[:100]})
    patient.install("torch", "ops", "unrelated")
    file = patient.site_packages / "ops" / "_C.so"
    file.unlink()
    file.write_bytes(library[: int(len(library) * part)])
    patient.heal("damaged-extension")


BACKENDS = {"x = 1\n": "has no _autoload", None: "there is no module back", "def _autoload(): ...\n": "",
            "from back.more import *\n": ""}  # fmt: skip


@pytest.mark.parametrize("code", BACKENDS)
def test_a_package_whose_function_import_torch_calls(patient: Patient, code: str | None) -> None:
    """torch calls the entry points of `torch.backends` when it is imported."""
    patient.torch()
    points = {"back-1.0.dist-info/entry_points.txt": "[torch.backends]\nback = back:_autoload\n"}
    patient.wheel("back", "1.0", {**points, **({"back/__init__.py": code} if code else {"other.py": ""})})
    patient.install("torch", "back")
    if not BACKENDS[code]:
        assert patient.doctor()[0] == 0
        return
    fault = patient.diagnose("broken-backend-of-torch", "back 1.0 lets `import torch` call back:_autoload, and ")
    assert BACKENDS[code] in fault["what"]
    patient.variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    assert patient.doctor()[0] == 0
    del patient.variables["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    patient.heal("broken-backend-of-torch")


def test_what_an_interrupted_pip_left(patient: Patient) -> None:
    """pip ignores names that begin with `~`, and so does doctor; only the leftovers are deleted."""
    patient.has_torch()
    left = patient.site_packages / "~orch-2.9.0.dist-info"
    left.mkdir()
    (left / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    (patient.site_packages / "~orch").mkdir()
    note = patient.remark("leftovers-of-pip")
    assert "~orch, ~orch-2.9.0.dist-info" in note["what"]
    code, data = patient.doctor(*note["cure"])
    assert (code, [one["code"] for one in data["findings"] if one["code"] == "leftovers-of-pip"]) == (0, [])
    assert not left.exists()
    assert (patient.site_packages / "torch").is_dir()


def test_a_setting_of_uv_that_chooses_torch(patient: Patient, tmp_path: Path) -> None:
    patient.has_torch()
    settings = tmp_path / "uv.toml"
    settings.write_text('[pip]\ntorch-backend = "auto"\n')
    patient.variables |= {"UV_NO_CONFIG": "0", "UV_CONFIG_FILE": str(settings)}
    for variable, what in (
        ({}, f"`torch-backend` in {settings}"),
        ({"UV_TORCH_BACKEND": "cpu"}, "UV_TORCH_BACKEND=cpu"),
    ):
        patient.variables |= variable
        assert what in patient.remark("torch-backend-of-uv")["what"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """`buildfarm doctor` in this process."""
    monkeypatch.setattr(sys, "argv", ["buildfarm", "doctor", *map(str, arguments)])
    return run_command()


def test_the_text_has_the_fault_its_cause_and_its_cure(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert call(monkeypatch, "--python", patient.python) == Exit.FAILED
    out = capsys.readouterr().out
    assert "fault: no folder of sys.path has torch" in out
    assert "why: `import torch` fails with ModuleNotFoundError" in " ".join(out.split())
    assert "cure: " in out
    assert out.endswith("1 fault\n")


SECRETS: Sequence[tuple[str, str]] = (
    ("SECRET_TOKEN", "hunter2"),
    ("UV_DEFAULT_INDEX", "https://user:hunter2@index.example/simple"),
    ("LD_LIBRARY_PATH", "/opt/https://user:hunter2@host/lib"),
)


def test_json_has_no_secrets(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.has_torch()
    for name, value in SECRETS:
        monkeypatch.setenv(name, value)
    (patient.site_packages / "torch-2.11.0.dist-info" / "direct_url.json").write_text(
        json.dumps({"url": "https://user:hunter2@files.example/torch.whl"})
    )
    call(monkeypatch, "--python", patient.python, "--json")
    text = capsys.readouterr().out
    data = json.loads(text)
    assert "hunter2" not in text
    assert "SECRET_TOKEN" not in text
    assert set(data) >= {"buildfarm", "python", "machine", "packages", "variables", "findings"}


def test_without_python_the_active_environment_is_judged(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.has_torch()
    monkeypatch.setenv("VIRTUAL_ENV", str(patient.python.parents[1]))
    assert call(monkeypatch, "--json") == Exit.OK
    data = json.loads(capsys.readouterr().out)
    assert data["torches"][0]["folder"] == str(patient.site_packages)


def test_without_any_environment_the_user_is_asked_for_one(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A torch in the environment of buildfarm would serve nobody."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(patient.python))
    assert call(monkeypatch) == Exit.USAGE
    assert "or name its Python: `buildfarm doctor --python env/bin/python`" in " ".join(capsys.readouterr().err.split())
    patient.has_torch()
    assert call(monkeypatch) == Exit.OK


def test_a_python_in_the_current_folder(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`./python` was looked for in PATH."""
    monkeypatch.chdir(patient.python.parent)
    monkeypatch.setenv("PATH", os.defpath)
    call(monkeypatch, "--python", f"./{patient.python.name}", "--json")
    assert json.loads(capsys.readouterr().out)["python"]["executable"] == str(patient.python)


DAMAGED: Sequence[tuple[str, bytes | None]] = (
    ("METADATA", None),
    ("METADATA", b"\xff\xfe"),
    ("METADATA", b"Metadata-Version: 2.1\nName: broken\n"),
    ("METADATA", b"Metadata-Version: 2.1\nName: broken\nVersion: not one\n"),
    ("METADATA", b"Metadata-Version: 2.1\nName: broken\nVersion: 1\nRequires-Dist: ???\n"),
    ("RECORD", b"\xff\xfe"),
    ("RECORD", b"a.so,sha256=,x,y,z\n../../b.so,,\n/etc/c.so,md5=\n"),
    ("RECORD", None),
    ("direct_url.json", b"{"),
    ("direct_url.json", b'[{"vcs_info": 1}]'),
)


def test_damaged_metadata_does_not_stop_doctor(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(ImportError):  # Dask imports it on Python 3.11; it then answers in place of the standard library
        import importlib_metadata  # noqa: F401

    patient.has_torch()
    for number, (name, data) in enumerate(DAMAGED):
        info = patient.site_packages / f"broken{number}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: broken{number}\nVersion: 1\n")
        (info / name).unlink(missing_ok=True)
        if data is not None:
            (info / name).write_bytes(data)
    left = patient.site_packages / "~orch-2.9.0.dist-info"  # which installers ignore, and no second torch
    left.mkdir()
    (left / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    assert call(monkeypatch, "--python", patient.python) == Exit.OK, capsys.readouterr().err
