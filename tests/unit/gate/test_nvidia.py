"""GPUs as nvidia-smi and compute-sanitizer report them, without these programs; and how they are hidden from torch."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from builder.gate.system import nvidia
from builder.gate.system.nvidia import (
    gpu_facts,
    hidden_gpus,
    hide_gpus,
    may_have_gpu,
    read_sanitizer,
    row_of,
    sanitizer_command,
    smi_rows,
)

TWO = """\
0, GPU-11111111-aaaa-bbbb-cccc-000000000000, NVIDIA H100 80GB HBM3, 580.65.06, 345, 1980, 2619, 700.00, 80503, Default
1, GPU-22222222-aaaa-bbbb-cccc-000000000000, NVIDIA H100 80GB HBM3, 580.65.06, 1980, 1980, 2619, [N/A], 3100, Prohibited
"""
MEMCHECK = """\
========= COMPUTE-SANITIZER
something the program printed
========= Invalid __global__ write of size 4 bytes
=========     at void add<float>(float *, long)+0x70 in add.cu:12
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x7f2b5be00080 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2b5be00000 of size 128 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x7ff]
=========
========= Invalid __global__ read of size 2 bytes
=========     at read()+0x10
=========     by thread (0,0,0) in block (1,0,0)
=========     Address 0x0 is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""


@pytest.fixture
def rows() -> list[dict[str, str]]:
    return smi_rows(TWO)


def test_a_row_for_each_gpu_without_missing_values(rows: list[dict[str, str]]) -> None:
    assert [(row["index"], row.get("power.limit")) for row in rows] == [("0", "700.00"), ("1", None)]
    for text in ("", "No devices were found\n", "Failed to initialize NVML: Driver/library mismatch\n"):
        assert smi_rows(text) == []


SECOND = "22222222-aaaa-bbbb-cccc-000000000000"
L4 = {"index": "2", "name": "NVIDIA L4"}


@pytest.mark.parametrize(
    ("number", "name", "uuid", "more", "index"),
    [
        pytest.param(0, "NVIDIA H100 80GB HBM3", SECOND, [], "1", id="the uuid, however it is numbered"),
        pytest.param(0, "NVIDIA H100 80GB HBM3", f"GPU-{SECOND}", [], "1", id="the uuid with its kind"),
        pytest.param(1, "NVIDIA H100 80GB HBM3", "", [], "1", id="the number, if all names are equal"),
        pytest.param(0, "NVIDIA H100 80GB HBM3", "", [L4], None, id="ambiguous"),
        pytest.param(0, "NVIDIA L4", "", [L4], "2", id="the only one of this name"),
        pytest.param(0, "NVIDIA L40", "", [L4], None, id="no such name"),
        # CUDA names it so, and its UUID is that of the part, which this query of nvidia-smi does not list.
        pytest.param(2, "NVIDIA L4 MIG 1g.10gb", "7b6a0b7e-0000", [L4], "2", id="a part of a GPU: that of the GPU"),
    ],
)
def test_which_row_is_that_of_a_gpu(
    rows: list[dict[str, str]], number: int, name: str, uuid: str, more: list[dict[str, str]], index: str | None
) -> None:
    assert row_of([*rows, *more], number, name, uuid).get("index") == index


def test_facts_of_a_gpu(rows: list[dict[str, str]]) -> None:
    assert gpu_facts("NVIDIA H100 80GB HBM3", (9, 0), 80 << 30, rows[0]) == {
        "name": "NVIDIA H100 80GB HBM3",
        "sm": "sm_90",
        "memory": "80 GiB",
        "driver": "580.65.06",
        "clock": "345 of 1980 MHz",
        "memory clock": "2619 MHz",
        "power limit": "700.00 W",
    }
    assert gpu_facts("x", (12, 0), 1 << 30, {}) == {"name": "x", "sm": "sm_120", "memory": "1 GiB"}


def test_processes_at_the_same_time(rows: list[dict[str, str]]) -> None:
    assert nvidia.most_processes(80 << 30, rows[0]) == 78
    assert nvidia.most_processes(10 << 30, rows[0]) == 10, "a part of a GPU (MIG)"
    assert nvidia.most_processes(80 << 30, {**rows[0], "memory.free": "3100"}) == 3
    assert nvidia.most_processes(80 << 30, {**rows[0], "memory.free": "100"}) == 1
    assert nvidia.most_processes(80 << 30, {**rows[0], "compute_mode": "Exclusive_Process"}) == 1
    assert nvidia.most_processes(8 << 30, {}) == 8, "no nvidia-smi"


def test_why_there_is_no_gpu(rows: list[dict[str, str]]) -> None:
    assert nvidia.why_no_gpu("13.0", "", []) == "no GPU on this machine"
    assert nvidia.why_no_gpu("13.0", "RuntimeError: Found no NVIDIA driver", []) == "no GPU on this machine"
    assert nvidia.why_no_gpu(None, "", []) == "this torch is a CPU build, which cannot use a GPU"
    assert nvidia.why_no_gpu(None, "", rows).endswith("the NVIDIA H100 80GB HBM3 that nvidia-smi finds")
    old = nvidia.why_no_gpu("13.0", "RuntimeError: The NVIDIA driver on your system is too old", rows)
    assert old == (
        "nvidia-smi finds NVIDIA H100 80GB HBM3 (driver 580.65.06), but torch (CUDA 13.0) does not: "
        "RuntimeError: The NVIDIA driver on your system is too old"
    )
    assert nvidia.why_no_gpu("13.0", "", rows).endswith("does not; check CUDA_VISIBLE_DEVICES")


def test_nvidia_smi_may_be_missing_or_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.smi() == []
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncase $1 in --query-gpu=index,uuid,*) ;; *) exit 2;; esac\ncat <<X\n{TWO}X\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert len(nvidia.smi()) == 2
    program.write_text(f"#!/bin/sh\ncat <<X\n{TWO}X\nexit 9\n")
    assert nvidia.smi() == []
    program.write_text(f"#!/bin/sh\ncat <<X\n{TWO}X\nexit 14\n")
    assert len(nvidia.smi()) == 2, "the infoROM of a GPU is corrupted"


def test_compute_sanitizer_is_found_on_the_path_or_in_the_toolkit(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    command = sanitizer_command(["python", "x"], {"PATH": "/nowhere", "CUDA_HOME": str(tmp_path)})
    assert command
    assert (command[0], command[-2:]) == (str(program), ["python", "x"])


WRITE = (
    "Invalid __global__ write of size 4 bytes at void add<float>(float *, long)+0x70 in add.cu:12 "
    "by thread (31,0,0) in block (0,0,0) Address 0x7f2b5be00080 is out of bounds"
)
READ = (
    "Invalid __global__ read of size 2 bytes at read()+0x10 by thread (0,0,0) in block (1,0,0) "
    "Address 0x0 is out of bounds"
)
OWN = "Internal Sanitizer Error: The Sanitizer encountered an error while launching add"
HEAD = "========= COMPUTE-SANITIZER\n"


@pytest.mark.parametrize(
    ("text", "report"),
    [
        pytest.param(MEMCHECK, (2, [WRITE, READ], ""), id="error, location and thread"),
        pytest.param(
            MEMCHECK.replace("Invalid __global__ write of size 4 bytes", OWN),
            (2, [READ], OWN),
            id="its own error is no finding",
        ),
        pytest.param(f"{HEAD}========= ERROR SUMMARY: 0 errors\n", (0, [], ""), id="clean"),
        pytest.param("", (None, [], ""), id="nothing"),
        pytest.param(
            f"{HEAD}========= Error: Target application ended before its first instrumented call\n",
            (None, [], ""),
            id="without a summary",
        ),
    ],
)
def test_the_report_of_the_sanitizer(text: str, report: tuple[int | None, list[str], str]) -> None:
    assert read_sanitizer(text) == report


VARIABLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(params=[None, "1"])
def before(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The GPUs that the user has chosen."""
    value: str | None = request.param
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    return value


def test_the_choice_of_the_user_is_restored(before: str | None) -> None:
    with hidden_gpus():
        assert os.environ[VARIABLE] == "-1"
    assert os.environ.get(VARIABLE) == before


@pytest.mark.usefixtures("before")
def test_what_torch_has_stored_about_gpus_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the modules of torch: triton's `has_triton` and the old `device_count` store their results."""

    @functools.cache
    def finds_gpu() -> bool:
        return os.environ.get(VARIABLE) != "-1"

    modules = {
        name: ModuleType(name) for name in ("torch.cuda", "torch.utils._triton", "torch._dynamo.device_interface")
    }
    vars(modules["torch.cuda"])["device_count"] = finds_gpu
    vars(modules["torch._dynamo.device_interface"])["_device_initialized"] = True
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert finds_gpu()
    with hidden_gpus():
        assert not finds_gpu()
        assert vars(modules["torch._dynamo.device_interface"])["_device_initialized"] is False
    assert finds_gpu()


def test_hidden_gpus_are_no_gpus(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, before or "0")  # so that monkeypatch restores it
    hide_gpus()
    assert not may_have_gpu()
