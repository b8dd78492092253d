"""NVIDIA's driver on this machine, and whether it is new enough for the CUDA of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.gate.system import nvidia
from builder.matrix.axes import Cuda
from builder.matrix.compat import Compat
from builder.proofs.cells import driver


@pytest.mark.parametrize(
    ("version", "cuda", "floor"),
    [
        ("580.65.06", Cuda(13, 2), ""),
        ("570.211.01", Cuda(13, 0), "580.65.06"),
        ("525.60.13", Cuda(12, 8), ""),
        ("520.61.05", Cuda(12, 1), "525.60.13"),
        ("450.80.02", Cuda(11, 8), ""),
        ("440.33", Cuda(11, 8), "450.80.02"),
        ("", Cuda(13, 0), ""),
        ("[N/A]", Cuda(13, 0), ""),
    ],
)
def test_driver_of_the_first_minor_suffices_within_a_major(version: str, cuda: Cuda, floor: str) -> None:
    assert driver.driver_runs(version, cuda, Compat.load()) is not bool(floor)
    assert floor in driver.driver_floor(cuda, Compat.load())


def test_version_from_nvidia_smi_else_from_the_kernel_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernel = tmp_path / "version"
    monkeypatch.setattr(driver, "_KERNEL", kernel)
    monkeypatch.setattr(nvidia, "smi", lambda: [{"name": "H100", "driver_version": "580.95.05"}])
    assert driver.driver_version() == "580.95.05"
    monkeypatch.setattr(nvidia, "smi", list)
    assert driver.driver_version() == ""
    kernel.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n")
    assert driver.driver_version() == "535.183.01"
    kernel.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    assert driver.driver_version() == "580.95.05"


def test_gpu_exists_when_the_driver_created_a_device_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvidia, "NODES", (tmp_path / "nvidiactl",))
    assert not driver.gpu_here()
    (tmp_path / "nvidiactl").touch()
    assert driver.gpu_here()
