"""The first error and the hint of real output: g++ 12 with torch's headers, nvcc 11.8 and 13.0, CMake, Python, ld.

The folder logs has what the programs printed; only paths are shorter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.diagnosis.first_error import LONGEST, FirstError, first_error
from builder.diagnosis.known_errors import hints_for
from builder.matrix.axes import Cuda, Torch
from builder.wheels.failures import was_killed

LOGS = Path(__file__).parent / "logs"
TORCH, CUDA = Torch(2, 15, 0), Cuda(13, 0)

#: Log → how the sentence begins, a line of the excerpt, and a part of the hint ("" where there is none).
EXPECTED = {
    "gcc-at_check": (
        "at_check.cpp:4:3: error: ‘AT_CHECK’ was not declared in this scope",
        '    4 |   AT_CHECK(n > 0, "n must be positive");',
        "torch 1.5 removed AT_CHECK: write `TORCH_CHECK`",
    ),
    "gcc-dispatch": (
        "torch/include/torch/headeronly/core/Dispatch.h:36:63: error: cannot convert ‘const at::Depre",
        "used in dispatch.cpp:4",
        "torch 2.6 removed `AT_DISPATCH_…(x.type(), …)`: write `x.scalar_type()`",
    ),
    "gcc-getthc": (
        "getthc.cpp:2:32: error: ‘class at::Context’ has no member named ‘getTHCState’",
        "      |                                ^~~~~~~~~~~",
        "torch 1.11 removed getTHCState",
    ),
    "gcc-guard": ("guard.cpp:3:34: error: ‘OptionalCUDAGuard’ is not", "      | ", "include `<c10/cuda/CUDAGuard.h>`"),
    "gcc-isvar": (
        "isvar.cpp:2:33: error: ‘class at::Tensor’ has no member",
        "    2 | ",
        "torch 2.14 removed is_variable",
    ),
    "nvcc-arch": ("nvcc fatal : Unsupported gpu architecture 'compute_35'", "", "`override_architectures: true`"),
    "nvcc-gcc-17": (
        "nvidia/cu13/bin/..//include/crt/host_config.h:137:2: error: #error -- unsupported GNU version!",
        "  137 | #error -- unsupported GNU version!",
        "takes gcc up to 15: install g++-15",
    ),
    "nvcc-cub": (
        'ksum.cu(5): error: namespace "cub" has no member "Max"',
        "    5 |     x[0] = R(t).Reduce(x[threadIdx.x], cub::Max());",
        "`cuda::maximum<>`",
    ),
    "nvcc-half": (
        'half2.cu(3): error: no operator "+" matches',
        "      |                 ^",
        "-U__CUDA_NO_HALF_OPERATORS__",
    ),
    "nvcc-at-half": (
        "athalf.cu(3): error: no instance of overloaded",
        "    3 |     atomicAdd(x, x[1]);",
        "gpuAtomicAdd",
    ),
    "nvcc-pybind": (
        "mine.cu(2): error: this declaration has no storage class or type specifier (5 errors in all)",
        "    2 |   PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {",
        "include `<torch/extension.h>`",
    ),
    "gcc-pybind": (
        "a.cpp:2:16: error: expected constructor, destructor, or type conversion before ‘(’ token (2 errors",
        "    2 | PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {",
        "include `<torch/extension.h>`",
    ),
    "nvcc-texture": ("tex.cu(1): error: texture is not a template", "    1 | ", "texture object"),
    "nvcc-shfl": ('shfl.cu(2): error: identifier "__shfl_down" is', "    2 | ", "__shfl_down_sync with a mask"),
    "nvcc-thc": ('thc2.cu(2): error: identifier "THCState" is undefined (3 errors', "    2 | ", "removed THCState"),
    "nvcc-prop": ('prop.cu(5): error: class "cudaDeviceProp" has no member', "    5 | ", "no `clockRate` any more"),
    "nvcc-ptxas": ("ptxas /tmp/tmpxft-6_ptx.ptx, line 26; error : Unknown modifier '.instruction'", "", ""),
    "nvcc-warning": ('warnerr.cu(1): error: identifier "nope" is undefined', "", ""),
    "build-multi": ("a.cpp:2:31: error: expected ‘;’ before ‘}’ token", "    2 | int f() { int unused; return 1 }", ""),
    "build-std14": (
        "torch/include/torch/csrc/api/include/torch/all.h:5:2: error: #error C++17 or later compatible compiler is",
        "included in ops.cpp:1",
        "the headers of torch 2.15.0 need C++17: delete `-std=…`",
    ),
    "build-noarch": ("nvcc fatal : Unsupported gpu architecture 'compute_35'", "", "`override_architectures: true`"),
    "build-same": ("ninja: error: build.ninja:31: multiple rules generate", "", "rename one of them"),
    "build-cmk": (
        'CMake Error at CMakeLists.txt:5 (find_package): By not providing "FindEigen3.cmake"',
        "",
        "Eigen3 is in `libeigen3-dev` (Debian, Ubuntu) and `eigen3-devel` (dnf): install it",
    ),
    "build-pyerr": ("setup.py:3: KeyError: 'MY_TOOLKIT'", "", ""),
    "build-nolib": ("/usr/bin/ld: cannot find -lsparsehashnone: No such file or directory", "", ""),
    "build-undef": (
        "ops.cpp:(.text+0xa): undefined reference to `missing(int)' (2 errors in all)",
        "",
        "no file of the extension and no library that it links defines the function",
    ),
}


def read(name: str) -> FirstError | None:
    return first_error((LOGS / f"{name}.log").read_text().splitlines(), "/build/src")


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_error_its_line_and_its_hint(name: str) -> None:
    sentence, line, hint = EXPECTED[name]
    error = read(name)
    assert error
    assert error.sentence.startswith(sentence)
    assert len(error.text) <= LONGEST
    assert any(shown.startswith(line) for shown in error.excerpt) if line else not error.excerpt, error.excerpt
    hints = hints_for(error, TORCH, CUDA, container=False)
    assert [hint in given for given in hints] == ([True] if hint else []), hints


def test_every_log_is_expected() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


def test_no_hint_names_a_release_newer_than_that_of_the_build() -> None:
    error = read("gcc-isvar")
    assert error
    assert hints_for(error, Torch(2, 13, 0), CUDA, container=False) == []


def test_warnings_notes_and_shown_lines_are_no_errors() -> None:
    """A sound build may print all of this."""
    sound = """\
-- Looking for error: found
CMake Warning at CMakeLists.txt:3 (message):
  error: AT_CHECK was not declared in this scope

a.cpp:3:10: warning: #warning "a.cpp:1:1: error: no" [-Wcpp]
    3 | #warning "a.cpp:1:1: error: no" [-Werror]
      |  ^~~~~~~
a.cpp: In function ‘void check_error()’:
a.cpp:9:2: note: ‘AT_CHECK’ was not declared in this scope before C++17
    9 | if (!p) throw std::runtime_error("error: out of memory, Killed, signal 9");
/usr/bin/ld: warning: undefined reference to `x' is ignored
a.cu(12): warning #177-D: variable "error" was declared but never referenced
g++ -Wfatal-errors -Werror=return-type -c error.cpp -o error.o
copying error.py -> build/lib/error.py
ptxas info    : 0 bytes gmem
1 error generated code path was removed
"""
    assert first_error(sound.splitlines(), "/build/src") is None
    assert not was_killed(sound.splitlines())
