"""Sources that fail with torch's headers and nvcc: the build ends with the first error, its line, and a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.errors import Exit
from tests.conftest import Farm, lacking

pytestmark = [pytest.mark.network, pytest.mark.slow]

RECIPE = (
    'name: {name}\nversion: "1.0"\nsource: {{path: src}}\nabi: cpython\nimports: [{name}]\nmemory_per_job: 512MiB\n'
)
SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
extension = CUDAExtension("{name}._C", {files!r}, extra_compile_args={options!r})
commands = {{"build_ext": BuildExtension}}
setup(name="{name}", version="1.0", packages=["{name}"], ext_modules=[extension], cmdclass=commands)
"""
KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"

#: Extension → its files, its options by compiler, and what the error, its excerpt and its first hint say.
CASES: dict[str, tuple[dict[str, str], dict[str, list[str]], str, str, str]] = {
    "at_check": (
        {"ops.cpp": "#include <c10/util/Exception.h>\n\nvoid f(int n) {\n  AT_CHECK(n > 0);\n}\n"},
        {},
        "ops.cpp:4:3: error: ‘AT_CHECK’ was not declared in this scope",
        "    4 |   AT_CHECK(n > 0);",
        "torch 1.5 removed AT_CHECK: write `TORCH_CHECK`",
    ),
    "thc": (
        {"k.cu": f"#include <THC/THC.h>\n{KERNEL}"},
        {},
        "k.cu:1:10: fatal error: THC/THC.h: No such file or directory",
        "    1 | #include <THC/THC.h>",
        "torch 1.11 removed THC/THC.h: include `<ATen/cuda/CUDAContext.h>`",
    ),
    "dispatch": (
        {
            "k.cu": "#include <ATen/ATen.h>\n#include <ATen/Dispatch.h>\nvoid f(at::Tensor x) {\n"
            '  AT_DISPATCH_FLOATING_TYPES(x.type(), "f", [&] { x.data_ptr<scalar_t>(); });\n}\n'
        },
        {},
        "error: no suitable conversion function from",
        "AT_DISPATCH_FLOATING_TYPES(x.type()",
        "torch 2.6 removed `AT_DISPATCH_…(x.type(), …)`: write `x.scalar_type()`",
    ),
    "standard": (
        {"ops.cpp": "#include <ATen/ATen.h>\n"},
        {"cxx": ["-std=c++14"]},
        "error: #error C++17 or later compatible compiler is required to use ATen",
        "    1 | #include <ATen/ATen.h>",
        "the headers of torch 2.11.0 need C++17: delete `-std=…`",
    ),
    "arch": (
        {"k.cu": KERNEL},
        {"nvcc": ["-gencode=arch=compute_35,code=sm_35"]},
        "nvcc fatal : Unsupported gpu architecture 'compute_35'",
        "",
        "`override_architectures: true`",
    ),
    "gcc_99": (
        {"k.cu": KERNEL},
        {"nvcc": ["-Xcompiler", "-U__GNUC__", "-Xcompiler", "-D__GNUC__=99"]},
        "#error -- unsupported GNU version! gcc versions later than 15 are not supported!",
        "#error -- unsupported GNU version!",
        "the nvcc of CUDA 13.0 takes gcc up to 15: install g++-15",
    ),
    "cub": (
        {"k.cu": "#include <cub/cub.cuh>\n__global__ void k(int* x) {\n  x[0] = cub::Max()(x[1], x[2]);\n}\n"},
        {},
        'k.cu(3): error: namespace "cub" has no member "Max"',
        "    3 |   x[0] = cub::Max()(x[1], x[2]);",
        "`cuda::maximum<>`",
    ),
    "same_name": (
        {"ops.cpp": "int f();\n", "ops.cu": KERNEL},
        {},
        "ninja: error: build.ninja",
        "",
        "two source files have the same name",
    ),
    "several": (
        {
            "a.cpp": "int f() { int unused; return 1 }\n",
            "b.cpp": '#include "none.h"\n',
            "k.cu": f"{KERNEL}int x = y;\n",
        },
        {"cxx": ["-Wall"]},
        "error: ",
        " | ",
        "",
    ),
}


@pytest.fixture(scope="module")
def errors(farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What report.json says about each build, and the messages of all builds under the key ""."""
    root = tmp_path_factory.mktemp("errors")
    for name, (files, options, *_) in CASES.items():
        source = root / name / "src"
        (source / name).mkdir(parents=True)
        (source / name / "__init__.py").touch()
        (root / name / "extension.yaml").write_text(RECIPE.format(name=name))
        (source / "setup.py").write_text(
            SETUP.format(name=name, files=list(files), options={"cxx": [], "nvcc": [], **options})
        )
        for file, text in files.items():
            (source / file).write_text(text)
    axes = 'torch: ["2.11"]\ncuda: ["13.0"]\npython: ["3.12"]\n'
    (root / "matrix.yaml").write_text(f"{axes}extensions: [{', '.join(CASES)}]\n")
    ran = farm("build", "--executor", "local", "--arch", "9.0", "--store", store, cwd=root)
    if ran.code == Exit.TOOL_MISSING:
        lacking(ran.err)
    assert ran.code == Exit.FAILED, ran.all
    builds = json.loads((root / "dist" / "report.json").read_text())["builds"]
    return {build["build"].partition("-")[0]: build for build in builds} | {"": {"error": ran.err}}


@pytest.mark.parametrize("name", CASES)
def test_a_build_ends_with_its_first_error(name: str, errors: dict[str, dict[str, Any]]) -> None:
    *_, error, line, hint = CASES[name]
    failed, printed = errors[name], errors[""]["error"]
    assert error in failed["error"]
    assert [hint in given for given in failed["hints"][:-1]] == ([True] if hint else []), failed["hints"]
    after = printed[printed.index(f"{failed['build']}: {failed['error']}") :].partition("hint:")[0]
    assert line in after, printed
    assert "Traceback" not in printed
