"""Real nvcc: the architectures that a source names, and steps that one cell takes from another, byte for byte."""

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from builder.matrix.axes import Cuda, Python, Torch
from builder.records import CacheStatistics
from builder.store import Store
from builder.wheelfile.facts import Library, read_facts
from builder.wheels.build_scripts.new_environment import link_toolkit
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.sccache.configure import find_sccache
from builder.wheels.toolchain.environments import Environment, Environments, build_requirements, toolkit_requirements
from tests.conftest import lacking
from tests.full.test_object_cache import CUDA, HOST, KERNEL, Machine
from tests.unit.matrix import make
from tests.unit.wheels.make_record import build_for

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: 8.0 and 8.6 share a virtual architecture, with which sccache 0.16 fails.
SETUP = """
from setuptools import setup
from torch.utils import cpp_extension
archs = ["arch=compute_80,code=sm_80", "arch=compute_80,code=sm_86", "arch=compute_90,code=[sm_90,compute_90]"]
flags = {"cxx": [], "nvcc": ["--threads", "4", *(word for arch in archs for word in ("-gencode", arch))]}
toy = cpp_extension.CUDAExtension("toy", ["toy.cpp", "kernel.cu"], extra_compile_args=flags)
setup(name="toy", version="1.0", ext_modules=[toy], cmdclass={"build_ext": cpp_extension.BuildExtension})
"""


@pytest.mark.parametrize(
    ("override", "cache"),
    [
        pytest.param(False, True, id="as the source has it"),
        pytest.param(True, True, id="as the plan has it"),
        pytest.param(True, False, id="as the plan has it, without sccache"),
    ],
)
def test_the_architectures_of_a_wheel(store: Path, tmp_path: Path, override: bool, cache: bool) -> None:
    if cache and find_sccache() is None:
        lacking("no sccache beside buildfarm's Python")
    build = build_for("torch2.11.0-cu130-cp312")
    recipe = replace(make.recipe("toy"), build_requires=("setuptools>=77", "wheel", "ninja"))
    recipe = replace(recipe, override_architectures=override)
    executor = LocalExecutor(Environments(Store(store), "https://wheels.invalid/{variant}"), compiler_cache=cache)
    prepared = executor.prepare(build, recipe, log=tmp_path / "log")
    job = CompileJob(build, recipe, prepared.toolchain, tmp_path, tmp_path / "log", 2, "test/architectures")
    job.tree.mkdir()
    for name, text in {"setup.py": SETUP, "value.h": "#define VALUE 1\n", "kernel.cu": KERNEL, "toy.cpp": HOST}.items():
        (job.tree / name).write_text(text)
    (library,) = read_facts(prepared.compile(job, lambda _: None).wheel).libraries
    if override:
        assert (library.sass, library.ptx) == (("sm_90",), ())
    else:
        assert (library.sass, library.ptx) == (("sm_80", "sm_86", "sm_90"), ("compute_90",))
    assert _sized(library)


def test_nvlink_links_with_link_time_optimization(store: Path, tmp_path: Path) -> None:
    """`CUDAExtension(dlink=True)`: torch adds `-dlto`, for which nvlink opens `nvvm/lib64/libnvvm.so`."""
    environments = Environments(Store(store), "https://wheels.invalid/{variant}")
    python, cuda = Python(3, 12), Cuda(13, 0)
    requirements = [*toolkit_requirements(cuda), f"nvidia-cuda-runtime=={cuda}.*"]
    environment = environments.ensure(python, requirements, index=[], log=tmp_path / "log")
    toolkit = environment.packaged_toolkit(cuda)
    link_toolkit(toolkit, "gcc")
    nvcc = (toolkit / "bin" / "nvcc", "-arch=sm_90", "-dlto")
    (tmp_path / "a.cu").write_text("__device__ int f(int); __global__ void k(int *x) { *x = f(1); }\n")
    (tmp_path / "b.cu").write_text("__device__ int f(int x) { return x + 1; }\n")
    for name in ("a", "b"):
        subprocess.run([*nvcc, "-dc", f"{name}.cu", "-o", f"{name}.o"], check=True, cwd=tmp_path)
    subprocess.run([*nvcc, "-dlink", "a.o", "b.o", "-o", "linked.o"], check=True, cwd=tmp_path)


def _sized(library: Library) -> bool:
    """Whether each architecture of a library has a size."""
    return set(library.gpu_code) == {*library.sass, *library.ptx} and min(library.gpu_code.values()) > 0


#: Cell: torch, Python.
CELLS = {
    "first": (Torch(2, 11, 0), Python(3, 12)),
    "Python": (Torch(2, 11, 0), Python(3, 13)),
    "torch": (Torch(2, 12, 0), Python(3, 12)),
}

#: Steps of nvcc for one GPU: cudafe++, cicc, ptxas and the host compiler.
ALL = 4

HOPPER = "-gencode=arch=compute_90,code=sm_90"

#: The host half of each source.
LAUNCH = "void run(float *p) { kernel<<<1, 32>>>(p); }\n"
HALF = "#include <c10/util/Half.h>\n"
TORCH = "#include <torch/version.h>\n"
PYTHON = "#include <patchlevel.h>\n"

#: Name: text, an option, and the most steps that the cells of another Python and of another torch compile. What only
#: the host half reads leaves ptxas as it was.
SOURCES: dict[str, tuple[str, str, int, int]] = {
    "nothing of torch": (
        "namespace { __device__ int count; __global__ void kernel(float *p) { p[threadIdx.x] += ++count; } }\n",
        *("-O3", 0, 0),
    ),
    "torch's headers on the GPU": (
        f"#include <ATen/cuda/DeviceUtils.cuh>\n{HALF}"
        "__global__ void kernel(float *p) { c10::Half h(*p); *p = WARP_SHFL_DOWN(float(h * h), 1); }\n",
        *("-O3", 0, ALL - 1),
    ),
    "torch in the host half": (
        f"{TORCH}int release = TORCH_VERSION_MINOR;\nstatic __constant__ float scale = 2;\n"
        "__global__ void kernel(float *p) { p[threadIdx.x] *= scale; }\n",
        *("-O3", 0, ALL - 1),
    ),
    "torch on the GPU": (f"{TORCH}__global__ void kernel(float *p) {{ *p = TORCH_VERSION_MINOR; }}\n", "-O3", 0, ALL),
    "Python in the host half": (
        f"{PYTHON}int python = PY_VERSION_HEX;\n__global__ void kernel(float *p) {{ p[threadIdx.x] *= 2; }}\n",
        *("-O3", ALL - 1, 0),
    ),
    "Python on the GPU": (f"{PYTHON}__global__ void kernel(float *p) {{ *p = PY_VERSION_HEX; }}\n", "-O3", ALL, 0),
    "CUDA": ("#include <cuda.h>\n__global__ void kernel(float *p) { *p = CUDA_VERSION; }\n", "-O3", 0, 0),
    "file and line, of torch's headers too": (
        f"#include <cstdio>\n{HALF}#include <torch/headeronly/util/Exception.h>\n"
        '__global__ void kernel(float *p) { printf("%s:%d", __FILE__, __LINE__); }\n'
        "int check(int a) { STD_TORCH_CHECK(a > 1); return a; }\n",
        *("-O3", 0, ALL - 1),
    ),
    "-rdc=true": (
        "extern __device__ float other(float);\nstatic __device__ float factor = 3;\n"
        "__global__ void kernel(float *p) { *p = other(*p) * factor; }\n",
        *("-rdc=true", 0, 0),
    ),
    "-lineinfo": (
        f"{HALF}__global__ void kernel(float *p) {{ *p = c10::Half(*p) * c10::Half(*p); }}\n",
        *("-lineinfo", 0, ALL),
    ),
}


@pytest.fixture(scope="module")
def environments(store: Path) -> dict[str, Environment]:
    """The environments of the cells, as the local executor makes them."""
    made = Environments(Store(store), "https://wheels.invalid/{variant}")
    log = Store(store).log("shared-steps")
    return {
        name: made.ensure(python, build_requirements(torch, CUDA, [], toolkit=True), index=[], log=log)
        for name, (torch, python) in CELLS.items()
    }


@pytest.fixture(scope="module")
def machine(environments: dict[str, Environment]) -> Iterator[Machine]:
    """One place and one cache for all cells."""
    program = find_sccache()
    if program is None:
        lacking("no sccache beside buildfarm's Python")
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:  # a socket's path is short
        yield Machine(Path(folder), environments["first"], program)


@pytest.fixture
def compiled(machine: Machine, environments: dict[str, Environment]) -> Callable[..., tuple[bytes, CacheStatistics]]:
    """Compile the kernel in the place of all cells, with the environment of one, by a script that calls nvcc."""

    def compile_in(
        cell: str, *options: str, fresh: bool = False, script: str = 'nvcc "$@"'
    ) -> tuple[bytes, CacheStatistics]:
        machine.environment = environments[cell]
        include = machine.folder / "objects" / "site" / "torch" / "include"
        headers = [include, include / "torch/csrc/api/include", machine.headers()]
        argv = ["sh", "-c", script, "nvcc", "-std=c++17", *(f"-I{path}" for path in headers), *options]
        env = {"SCCACHE_NO_CACHE": "1"} if fresh else None
        found, output = machine.run(*argv, "-c", "kernel.cu", "-o", "out.o", env=env)
        assert not found.not_cached, output
        return (machine.source / "out.o").read_bytes(), found

    return compile_in


@pytest.mark.parametrize("name", SOURCES)
def test_what_another_cell_made_equals_a_fresh_object(
    machine: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]], name: str
) -> None:
    text, option, of_python, of_torch = SOURCES[name]
    machine.write("kernel.cu", text + LAUNCH)
    _, found = compiled("first", HOPPER, option)
    assert found.reused == 0
    for cell, most in (("Python", of_python), ("torch", of_torch)):
        cached, found = compiled(cell, HOPPER, option)
        fresh, alone = compiled(cell, HOPPER, option, fresh=True)
        assert alone.reused == 0
        assert cached == fresh, f"{found.reused} of {found.reused + found.compiled} steps were reused"
        assert found.compiled <= most, f"{cell}: compiled {found.compiled} steps"


def edited(chance: random.Random) -> str:
    """The kernel after edits of macros, of host-only and GPU-only code, of lines, and of versions."""
    number = partial(chance.randrange, 3)
    return (
        f"#define VALUE {number()}\n{TORCH}{PYTHON}" + "// a line\n" * number() + "#ifdef __CUDA_ARCH__\n"
        f"#define HALF {number()}\n#else\n#define HALF {number()}\nint host() {{ return {number()}; }}\n#endif\n"
        f"static __device__ int state = {chance.choice(['1', 'VALUE', 'PY_MINOR_VERSION', 'TORCH_VERSION_MINOR'])};\n"
        f"int answer = {chance.choice(['HALF', '__LINE__', 'PY_MINOR_VERSION', 'TORCH_VERSION_MINOR'])};\n"
        f"__global__ void kernel(float *p) {{ *p += HALF + ++state + {chance.choice(['0', 'VALUE', '__LINE__'])}; }}\n"
    )


def test_edits_by_chance_never_get_an_object_of_another_text(
    machine: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]]
) -> None:
    """BUILDFARM_TEST_EDITS is their number: each takes some seconds."""
    edits, out = machine.folder / "edits", machine.folder / "out"
    for folder in (edits, out):
        folder.mkdir()
    chance = random.Random(1)
    for number in range(int(os.environ.get("BUILDFARM_TEST_EDITS", "8"))):
        (edits / f"{number}.cu").write_text(edited(chance) + LAUNCH)
    reused = 0
    for cell, fresh in product(CELLS, (False, True)):
        one = f'cp "$edit" kernel.cu && nvcc "$@" && cp out.o {out}/$(basename $edit)-{fresh} || exit 1'
        _, found = compiled(cell, HOPPER, fresh=fresh, script=f"for edit in {edits}/*.cu; do {one}; done")
        reused += found.reused
        for edit in edits.iterdir() if fresh else ():
            cached, anew = ((out / f"{edit.name}-{kind}").read_bytes() for kind in (False, True))
            assert cached == anew, f"{cell}: {edit.read_text()}"
    assert reused > 0


def test_a_further_architecture_compiles_its_own_steps_alone(
    machine: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]]
) -> None:
    machine.write("kernel.cu", f"{HALF}__global__ void kernel(float *p) {{ *p *= 4; }}\n{LAUNCH}")
    both = [HOPPER, "-gencode=arch=compute_100,code=sm_100"]
    compiled("first", HOPPER)
    cached, found = compiled("first", *both)
    assert (found.reused, found.compiled) == (3, 3), "cicc, ptxas, and the host half that holds both"
    assert cached == compiled("first", *both, fresh=True)[0]


def test_the_time_of_a_compile_is_not_that_of_another(
    machine: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]]
) -> None:
    machine.write("kernel.cu", "const char *made() { return __TIME__; }\n__global__ void kernel() {}\n")
    first, _ = compiled("first", HOPPER)
    time.sleep(1)
    second, _ = compiled("first", HOPPER)
    assert first != second
