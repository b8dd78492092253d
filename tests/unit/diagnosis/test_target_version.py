"""TORCH_TARGET_VERSION in the files of a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.diagnosis.target_version import target_version, written
from builder.matrix.axes import Torch

PLAN = Torch(2, 11, 0)
RIGHT, TRAP, SHORT = "0x020a000000000000", "0x0210000000000000", "0x0210"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("setup.py", f'cxx = ["-O3", "-DTORCH_TARGET_VERSION={RIGHT}"]'),
        ("setup.py", f'define_macros=[("TORCH_TARGET_VERSION", "{RIGHT}")]'),
        ("setup.py", f"macros = {{'TORCH_TARGET_VERSION': '{RIGHT}ULL'}}"),
        ("setup.py", f'TARGET = "{RIGHT}"\nmacros = [f"-DTORCH_TARGET_VERSION={{TARGET}}"]'),
        ("setup.py", f'macros = ["-DTORCH_TARGET_VERSION=" + TARGET]\nTARGET: str = "{RIGHT}"'),
        ("setup.py", 'cxx = [f"-DTORCH_TARGET_VERSION={hex((2 << 56) | (10 << 48))}"]'),
        ("CMakeLists.txt", f"target_compile_definitions(ops PRIVATE TORCH_TARGET_VERSION={RIGHT})"),
        ("cmake/abi.cmake", f"add_compile_options(-DTORCH_TARGET_VERSION={RIGHT})"),
        ("CMakeLists.txt", f"set(TORCH_TARGET_VERSION {RIGHT})"),
        ("CMakeLists.txt", f"set(ABI {RIGHT})\nadd_definitions(-DTORCH_TARGET_VERSION=${{ABI}})"),
        ("pyproject.toml", f'cmake.define.TORCH_TARGET_VERSION = "{RIGHT}"'),
        ("csrc/ops.h", f"#define TORCH_TARGET_VERSION {RIGHT}ULL"),
        ("csrc/ops.cu", "  # define TORCH_TARGET_VERSION (((0ULL + 2) << 56) | ((0ULL + 10) << 48))"),
        ("csrc/ops.h", "#define TORCH_TARGET_VERSION ((uint64_t)2 << 56 | (uint64_t)10 << 48)"),
        ("csrc/ops.h", "#define TORCH_TARGET_VERSION TORCH_VERSION_2_10_0"),
    ],
)
def test_a_value_and_its_place(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"\n{line}\n")
    found = target_version(tmp_path, PLAN)
    assert found is not None
    assert (found.torch, found.meant) == (Torch(2, 10, 0), Torch(2, 10, 0))
    number = 1 + next(place for place, text in enumerate(f"\n{line}".split("\n")) if "TORCH_TARGET" in text)
    assert str(found) == f"{name}:{number}"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("setup.py", f"# -DTORCH_TARGET_VERSION={TRAP}"),
        ("setup.py", '"""TORCH_TARGET_VERSION is set below."""'),
        ("setup.py", 'cxx.append("-DTORCH_TARGET_VERSION=" + os.environ["TORCH_TARGET_VERSION"])'),
        ("csrc/ops.h", f"#if TORCH_TARGET_VERSION >= {TRAP}"),
        ("csrc/ops.h", "#ifdef TORCH_TARGET_VERSION\n#define X 1\n#endif"),
        ("csrc/ops.h", f"// -DTORCH_TARGET_VERSION={TRAP}"),
        ("third_party/torch/version.h", f"#define TORCH_TARGET_VERSION {TRAP}"),
        ("README.md", f"-DTORCH_TARGET_VERSION={TRAP}"),
    ],
)
def test_what_is_no_value(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f"{line}\n")
    assert target_version(tmp_path, PLAN) is None


def test_the_newest_value_that_suits_the_torch(tmp_path: Path) -> None:
    values = {"2.10": RIGHT, "2.11": "0x020b000000000000", "2.12": "0x020c000000000000"}
    (tmp_path / "setup.py").write_text("".join(f'"-DTORCH_TARGET_VERSION={value}"\n' for value in values.values()))
    for series, torch in (
        ("2.10", Torch(2, 10, 0)),
        ("2.11", PLAN),
        ("2.12", Torch(2, 13, 0)),
        ("2.10", Torch(2, 9, 1)),
    ):
        found = target_version(tmp_path, torch)
        assert found is not None
        assert found.torch.series == series


@pytest.mark.parametrize(
    ("value", "means", "meant"),
    [(TRAP, "2.16", "2.10"), (SHORT, "0.0", "2.10"), ("0x0209", "0.0", "2.9"), ("0x20a", "0.0", "2.10")],
)
def test_a_wrong_form(tmp_path: Path, value: str, means: str, meant: str) -> None:
    found = target_version(tmp_path, PLAN, f"CXXFLAGS -DTORCH_TARGET_VERSION={value}", "extension.yaml")
    assert found is not None
    assert (found.torch.series, found.meant.series, found.file) == (means, meant, "extension.yaml")
    assert written(Torch(2, 10, 0)) == RIGHT
