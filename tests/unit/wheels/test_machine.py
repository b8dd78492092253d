"""Which nvcc and which host compiler a build gets: the one asked for, or every way out in the refusal."""

from pathlib import Path

import pytest

from builder.errors import Code, Exit, MissingToolError
from builder.matrix.axes import Cuda, Torch
from builder.wheels.toolchain.machine import Toolkit, find_host_compiler, find_toolkit, nvcc_version
from tests.refused import refused
from tests.unit import loopback

pytestmark = pytest.mark.usefixtures("fresh_eyes", "bare")

TORCH = Torch(2, 2, 2)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an empty PATH and no CUDA; answers the folder that is on PATH."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("builder.wheels.toolchain.machine.USUAL_HOMES", ())
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def program(path: Path, says: str, status: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_exact_one_beats_the_one_that_cuda_home_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(loopback.toolkit(tmp_path / "other", "12.4.131")))
    monkeypatch.setenv("CUDA_PATH", str(exact := loopback.toolkit(tmp_path / "exact", "12.1.66")))
    assert find_toolkit(Cuda(12, 1), minor_mismatch=True) == Toolkit(exact, "12.1.66")


def test_nvcc_on_path_leads_to_its_toolkit_through_links(tmp_path: Path, bare: Path) -> None:
    home = loopback.toolkit(tmp_path / "cuda", "12.1.105")
    (bare / "nvcc").symlink_to(home / "bin" / "nvcc")
    assert find_toolkit(Cuda(12, 1), minor_mismatch=False) == Toolkit(home, "12.1.105")


def test_from_13_0_on_nothing_needs_to_be_installed() -> None:
    assert find_toolkit(Cuda(13, 2), minor_mismatch=False) == Toolkit(None, "13.2")


@pytest.mark.parametrize("on_disk", ["12.4.131", "11.8.89", None], ids=["same major", "another major", "none"])
def test_without_the_minor_the_refusal_names_each_way_out(
    on_disk: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_disk:
        monkeypatch.setenv("CUDA_HOME", str(loopback.toolkit(tmp_path / "cuda", on_disk)))
    with pytest.raises(MissingToolError) as caught:
        find_toolkit(Cuda(12, 1), minor_mismatch=False)
    error = caught.value
    assert error.exit_code == Exit.TOOL_MISSING
    assert str(error) == "no CUDA 12.1 toolkit on this machine"
    hints = "\n".join(error.hints)
    for way in ("CUDA_HOME", "--allow-cuda-minor-mismatch", "--executor docker", "CUDA 13.0 or later"):
        assert way in hints, way
    assert ("12.4.131" in hints) == (on_disk == "12.4.131")
    assert "11.8" not in hints


@pytest.mark.parametrize("broken", ["absent", "no program", "silent", "nonsense"])
def test_an_nvcc_that_does_not_run_counts_as_none(broken: str, tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    if broken == "no program":
        nvcc.write_bytes(b"\0\1\2")
        nvcc.chmod(0o755)
    elif broken != "absent":
        program(nvcc, "" if broken == "silent" else "command not found", 0 if broken == "silent" else 127)
    assert nvcc_version(tmp_path) == ""


def test_a_default_that_is_too_new_gives_way_to_the_newest_that_fits(bare: Path) -> None:
    for name, version in (("g++", "14.2.0"), ("g++-13", "13.3.0"), ("g++-12", "12.4.0"), ("g++-11", "11.4.0")):
        program(bare / name, version)
    assert find_host_compiler(Cuda(12, 1)).cxx == str(bare / "g++-12")
    assert find_host_compiler(Cuda(12, 4)).cxx == str(bare / "g++-13")


def test_what_torchs_headers_refuse_is_not_taken_though_nvcc_takes_it(bare: Path) -> None:
    program(bare / "g++", "13.3.0")
    program(bare / "g++-12", "12.4.0")
    assert find_host_compiler(Cuda(12, 4), TORCH).version == "12.4.0"


@pytest.mark.parametrize("here", ["14.2.0", "7.5.0"])
def test_none_that_fits_is_said_with_what_is_there(here: str, bare: Path) -> None:
    program(bare / "g++", here)
    with refused(Code.COMPILER_UNSUITABLE, "gcc 9 to 12", here) as caught:
        find_host_compiler(Cuda(12, 1), TORCH)
    assert "g++-12" in caught.value.hints[0]


def test_no_compiler_at_all() -> None:
    with refused(Code.COMPILER_MISSING):
        find_host_compiler(Cuda(12, 1))


def test_cxx_is_the_only_candidate_when_it_is_set(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "g++", "12.2.0")
    program(bare / "my-g++", "11.4.0")
    monkeypatch.setenv("CXX", str(bare / "my-g++"))
    monkeypatch.setenv("CC", "/somewhere/my-cc")
    found = find_host_compiler(Cuda(12, 1))
    assert (found.cxx, found.cc) == (str(bare / "my-g++"), "/somewhere/my-cc")


@pytest.mark.parametrize("cxx", ["absent", "broken"])
def test_a_cxx_that_does_not_run_is_named(cxx: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "g++", "12.2.0")
    program(bare / "broken", "", 1)
    monkeypatch.setenv("CXX", cxx)
    with refused(Code.COMPILER_MISSING, f"{cxx}"):
        find_host_compiler(Cuda(12, 1))
