"""How many compilers a machine allows, and the errors for too little disk space and memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from builder import resources
from builder.errors import Code, Exit
from builder.resources import Resources, compile_jobs, find_shortages, measure_resources

GIB = 2**30


#: Cores, GiB of memory, GiB per compiler, the wanted number, and the number of compilers.
JOBS: dict[str, tuple[int, int, float, int | None, int]] = {
    "as many as cores": (8, 64, 1.0, None, 8),
    "memory limits, one GiB is spared": (8, 5, 1.0, None, 4),
    "hungrier jobs": (8, 5, 2.0, None, 2),
    "never none": (8, 2, 4.0, None, 1),
    "no memory at all": (8, 0, 1.0, None, 1),
    "one core": (1, 64, 1.0, None, 1),
    "what was asked for wins over cores": (2, 64, 1.0, 16, 16),
    "and over memory": (8, 2, 4.0, 3, 3),
}


@pytest.mark.parametrize(("cores", "memory", "per_job", "wanted", "jobs"), JOBS.values(), ids=JOBS.keys())
def test_compile_jobs(cores: int, memory: int, per_job: float, wanted: int | None, jobs: int) -> None:
    assert compile_jobs(Resources(cores, memory * GIB), int(per_job * GIB), wanted) == jobs


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group of its own, and 64 GiB in the machine."""
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    return tmp_path


def limited(folder: Path, names: tuple[str, str], limit: str, used: int, stat: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_without_a_cgroup_the_machine_decides(cgroup: Path) -> None:
    assert cgroup.is_dir()
    assert measure_resources().memory == 64 * GIB
    assert measure_resources().cores >= 1


LIMITS = {
    "no limit": ("max", 3 * GIB, "", 64 * GIB),
    "what is left of the limit": (str(8 * GIB), 3 * GIB, "", 5 * GIB),
    "never below nothing": (str(8 * GIB), 9 * GIB, "", 0),
    "a limit beyond the machine": (str(2**63 - 4096), 3 * GIB, "", 64 * GIB),
    "cached files are free": (str(8 * GIB), 7 * GIB, f"anon 5\nfile 9\ninactive_file {6 * GIB}\n", 7 * GIB),
}


@pytest.mark.parametrize(("limit", "used", "stat", "memory"), LIMITS.values(), ids=LIMITS.keys())
def test_the_limit_of_a_cgroup_counts(limit: str, used: int, stat: str, memory: int, cgroup: Path) -> None:
    limited(cgroup, V2, limit, used, stat)
    assert measure_resources().memory == memory


def test_cgroup_version_1_counts_too(cgroup: Path) -> None:
    limited(cgroup / "memory", V1, str(8 * GIB), 7 * GIB, f"cache 1\ntotal_inactive_file {2 * GIB}\n")
    assert measure_resources().memory == 3 * GIB


def test_enough_space_and_memory_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "ENVIRONMENT_BYTES", 0)
    monkeypatch.setattr(resources, "WORK_BYTES", 0)
    assert find_shortages(Resources(1, GIB), [GIB, GIB // 2], tmp_path) == []
    assert find_shortages(Resources(1, GIB), [], tmp_path) == []


def test_each_shortage_is_an_error_with_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "ENVIRONMENT_BYTES", 2**60)
    disk, memory = find_shortages(Resources(1, GIB), [GIB // 2, 3 * GIB], tmp_path)
    assert (disk.code, disk.exit_code, disk.where) == (Code.DISK_FULL, Exit.USAGE, str(tmp_path))
    assert "GiB are free" in disk.sentence
    assert "buildfarm store prune" in disk.hints[0]
    assert "--store" in disk.hints[1]
    assert memory.code is Code.OUT_OF_MEMORY
    assert "1.0 GiB" in memory.sentence
    assert "3.0 GiB" in memory.sentence
    assert "memory_per_job" in memory.hints[0]
