"""The table of known errors: each row has a source and finds the forms of gcc, clang and nvcc, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from builder.diagnosis import known_errors
from builder.diagnosis.first_error import FirstError
from builder.diagnosis.hints import hints_for
from builder.diagnosis.known_errors import SECTIONS, KnownError, knowledge, plain_quotes
from builder.matrix.axes import Cuda, Torch

NEWEST, CUDA = Torch(2, 15, 0), Cuda(13, 0)
FILE = Path(known_errors.__file__).with_name("known_errors.yaml")


def hints(message: str, torch: Torch = NEWEST, cuda: Cuda = CUDA, *, container: bool = False) -> list[str]:
    return hints_for(FirstError(message, message), torch, cuda, container=container)


def test_every_row_has_a_source_and_a_text() -> None:
    rows = knowledge().errors
    assert len(rows) >= 30
    for row in rows:
        assert row.source, row
        assert row.hint, row
        assert row.about, row
        assert row.forms, row
        assert (row.torch is not None) == (row.section == "removed_from_torch")
    for package in knowledge().packages:
        assert package.pypi or package.submodule or (package.debian and package.dnf), package


@pytest.mark.parametrize("row", [row for row in knowledge().errors if row.example], ids=lambda row: row.example[:40])
def test_the_example_of_a_row_finds_this_row_and_no_earlier_one(row: KnownError) -> None:
    text = plain_quotes(row.example)
    found = [each for each in knowledge().errors if any(form.search(text) for form in each.forms)]
    assert found, row.example
    assert found[0] == row


def test_every_message_has_an_example() -> None:
    rows = yaml.safe_load(FILE.read_text())
    lacking = [row for section in SECTIONS for row in rows[section] if "message" in row and not row.get("example")]
    assert lacking == []


@pytest.mark.parametrize(
    "row", [row for row in yaml.safe_load(FILE.read_text())["removed_from_torch"] if "names" in row]
)
def test_names_are_found_in_the_words_of_every_compiler(row: dict[str, list[str]]) -> None:
    for name in row["names"]:
        for message in (
            f"a.cpp:1:1: error: ‘{name}’ was not declared in this scope",
            f"a.cpp:1:1: error: ‘{name}’ does not name a type",
            f"a.cpp:1:1: error: ‘class at::Tensor’ has no member named ‘{name}’",
            f"a.cpp:1:1: error: use of undeclared identifier '{name}'",
            f'a.cu(1): error: identifier "{name}" is undefined',
        ):
            [hint] = hints(message)
            assert f"removed {name}: " in hint
            assert hints(message.replace(name, f"my_{name}x")) == []


@pytest.mark.parametrize("header", ["THC/THC.h", "THC/THCGeneral.h", "TH/TH.h", "c10/util/variant.h"])
def test_headers_are_found_in_the_words_of_every_compiler(header: str) -> None:
    for message in (
        f"a.cpp:1:10: fatal error: {header}: No such file or directory",
        f"a.cpp:1:10: fatal error: '{header}' file not found",
        f'a.cu(1): catastrophic error: cannot open source file "{header}"',
    ):
        [hint] = hints(message)
        assert f"removed {header}: " in hint
    assert hints(f"a.cpp:1:10: fatal error: my/{header}: No such file or directory") == []


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (
            "a.cpp:1:1: fatal error: glm/glm.hpp: No such file or directory",
            "`libglm-dev` (Debian, Ubuntu) and `glm-devel`",
        ),
        ("a.cpp:1:1: fatal error: Eigen/Core: No such file or directory", "`libeigen3-dev`"),
        ("a.cpp:1:1: fatal error: 'GL/gl.h' file not found", "`libgl-dev`"),
        ("/usr/bin/ld: cannot find -lpng: No such file or directory", "the library png is in `libpng-dev`"),
        ("/usr/bin/ld: cannot find -lpng", "the library png is in `libpng-dev`"),
        ("CMake Error: Could NOT find JPEG (missing: JPEG_LIBRARY)", "JPEG is in `libjpeg62-turbo-dev`"),
        (
            "a.cpp:1:1: fatal error: cudnn.h: No such file or directory",
            "`nvidia-cudnn-cu13`: add it to `build_requires`",
        ),
        ("a.cpp:1:1: fatal error: cutlass/cutlass.h: No such file or directory", "submodule"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'cmake'", "add `cmake` to `build_requires`"),
        ("/bin/sh: 1: swig: not found", "add `swig`"),
        ("ModuleNotFoundError: No module named 'pybind11.setup_helpers'", "add `pybind11` to"),
        ("ModuleNotFoundError: No module named 'pkg_resources'", "add `setuptools<82`"),
        ("ModuleNotFoundError: No module named 'torch'", "--no-build-isolation"),
        ("a.cpp:1:1: error: unused variable ‘b’ [-Werror=unused-variable]", "delete `-Werror`"),
    ],
)
def test_what_is_missing_has_the_name_of_its_package(message: str, hint: str) -> None:
    [given] = hints(message)
    assert hint in given


def test_in_a_container_the_image_needs_the_package() -> None:
    [hint] = hints("a.cpp:1:1: fatal error: glm/glm.hpp: No such file or directory", container=True)
    assert hint.endswith("under `images:` in matrix.yaml, name an image that has it")


@pytest.mark.parametrize(
    "message",
    [
        "a.cpp:1:10: fatal error: my_header.h: No such file or directory",
        "a.cpp:1:1: error: ‘variant’ was not declared in this scope",
        "a.cpp:1:1: error: ‘Max’ is not a member of ‘mine’",
        "a.cpp:1:1: error: no matching function for call to ‘AT_CHECK_MINE(int)’",
        'a.cu(1): error: no operator "+" matches these operands operand types are: Vec + Vec',
        "a.cpp:1:1: error: cannot convert ‘at::Tensor’ to ‘c10::ScalarType’",
        "/usr/bin/ld: cannot find -lmine: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data.txt'",
    ],
)
def test_other_errors_have_no_hint(message: str) -> None:
    assert hints(message) == []


def test_a_build_for_an_older_release_has_no_hint_about_a_newer_one() -> None:
    nvtx = "a.cpp:1:1: fatal error: nvToolsExt.h: No such file or directory"
    assert hints(nvtx, cuda=Cuda(12, 4)) == []
    assert re.match("CUDA 12.9 moved or removed nvToolsExt.h", hints(nvtx)[0])


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("fatal: not a git repository (or any of the parent directories): .git", "a build has no `.git`"),
        ("LookupError: setuptools-scm was unable to detect version for /project.", "a build has no `.git`"),
        ("RuntimeError: Unable to detect version control system. Checked: Git.", "a build has no `.git`"),
        ("RuntimeError: This does not appear to be a Git project", "a build has no `.git`"),
        ("git.exc.InvalidGitRepositoryError: /project", "a build has no `.git`"),
        ("Exception: Versioning for this project requires either an sdist tarball, or", "a build has no `.git`"),
        ("error: package directory 'tests' does not exist", "exclude `tests` from `packages`"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "`assume_cuda: true`"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'nvidia-smi'", "no driver"),
        ("/env/bin/python: No module named cython", "add `cython` to `build_requires`"),
        ("a.c:1:10: fatal error: npp.h: No such file or directory", "`cuda-toolkit[npp]`: add it"),
    ],
)
def test_what_a_source_expects_of_its_build(message: str, hint: str) -> None:
    (found,) = hints(message)
    assert hint in found


def test_a_header_of_an_installed_package_is_not_searched() -> None:
    message = "a.c:1:10: fatal error: cublas_v2.h: No such file or directory"
    error = FirstError(message, message)
    (found,) = hints_for(error, NEWEST, CUDA, container=False, packages=["nvidia-cublas==13.1.0.3"])
    assert "is in `nvidia-cublas`, which is installed" in found
