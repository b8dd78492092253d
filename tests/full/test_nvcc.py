"""Real nvcc and sccache: architectures, launchers of every build system, no stale object, steps of other cells."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.plan import Build
from builder.records import CacheStatistics, Part
from builder.store import Store
from builder.wheelfile.facts import Library, read_facts
from builder.wheels.build_scripts import PACKAGE, script_command
from builder.wheels.build_scripts.job_file import write_job
from builder.wheels.build_scripts.new_environment import link_toolkit
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.sccache.configure import as_set, cache_variables, find_sccache, read_statistics
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.toolchain.environments import Environment, Environments, build_requirements, toolkit_requirements
from builder.wheels.toolchain.machine import find_host_compiler
from tests.conftest import lacking, run
from tests.fixtures.built_cells import changed_sections
from tests.unit.matrix import make
from tests.unit.wheels.make_record import build_for

pytestmark = [pytest.mark.network, pytest.mark.slow]

CUDA, TORCH = Cuda(13, 0), Torch(2, 11, 0)

KERNEL = """
#include "value.h"
__global__ void kernel(int *out) { *out = VALUE; }
#ifndef __CUDA_ARCH__
extern "C" const char *host_only() { return "host one"; }
#endif
extern "C" int launch(int *out) { kernel<<<1, 1>>>(out); return VALUE; }
"""

HOST = """
#include <Python.h>
#include "value.h"
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "toy", nullptr, VALUE, nullptr};
PyMODINIT_FUNC PyInit_toy() { return PyModule_Create(&module); }
"""

TORCH_SETUP = """
from setuptools import setup
from torch.utils import cpp_extension
flags = {{"cxx": ["-O1"], "nvcc": ["-O1", "-cudart", "shared"]}}
toy = cpp_extension.CUDAExtension("toy", ["toy.cpp", "kernel.cu"], extra_compile_args=flags)
build_ext = cpp_extension.BuildExtension.with_options(use_ninja={ninja})
setup(name="toy", version="1.0", ext_modules=[toy], cmdclass={{"build_ext": build_ext}})
"""

PLAIN_SETUP = """
from setuptools import Extension, setup
setup(name="toy", version="1.0", ext_modules=[Extension("toy", ["toy.cpp"])])
"""

CMAKE = """
cmake_minimum_required(VERSION 3.24)
project(toy LANGUAGES CXX CUDA)
find_package(Python REQUIRED COMPONENTS Development.Module)
add_library(toy MODULE toy.cpp kernel.cu)
target_link_libraries(toy Python::Module)
"""

SETUP, CMAKE_BUILD = (["python", "setup.py", "-q", "build_ext", "--inplace"], ["cmake", "--build", "b"])

#: One step of toy.cpp; for kernel.cu cudafe++, cicc, ptxas and the host compiler.
_BOTH = 5

#: Build system to its files, the command that builds, and the steps that sccache counts.
SYSTEMS = {
    "torch with ninja": ({"setup.py": TORCH_SETUP.format(ninja=True)}, SETUP, _BOTH),
    "torch without ninja": ({"setup.py": TORCH_SETUP.format(ninja=False)}, SETUP, _BOTH),
    "setuptools": ({"setup.py": PLAIN_SETUP}, SETUP, 1),
    "cmake": ({"CMakeLists.txt": CMAKE}, CMAKE_BUILD, _BOTH),
}


@pytest.fixture(scope="module")
def environment(store: Path) -> Environment:
    """The one the local executor makes for the shipped extensions."""
    wanted = build_requirements(TORCH, CUDA, ["setuptools>=77", "wheel", "ninja"], toolkit=True)
    environments = Environments(Store(store), "https://wheels.invalid/{variant}")
    return environments.ensure(Python(3, 12), wanted, index=[], log=Store(store).log("object-cache"))


class Machine:
    """A source tree, and compilers behind a cache of its own."""

    def __init__(self, folder: Path, environment: Environment, sccache: Path) -> None:
        self.folder, self.environment, self.sccache = folder, environment, sccache
        self.place: dict[str, str] = {}
        self.source = folder / "src"
        self.source.mkdir()
        self.write("value.h", "#define VALUE 1\n")
        self.write("kernel.cu", KERNEL)
        self.write("toy.cpp", HOST)
        self.write("hidden.cpp", "#include <hidden.h>\n")
        self.write("second/hidden.h", "int value = 1;\n")

    def write(self, name: str, text: str) -> None:
        """Put a source file there."""
        (self.source / name).parent.mkdir(exist_ok=True)
        (self.source / name).write_text(text)

    def run(self, *argv: str, env: dict[str, str] | None = None) -> tuple[CacheStatistics, str]:
        """Run a command in the tree behind the cache; what was reused, and its output."""
        compiler = find_host_compiler(CUDA, TORCH)
        objects, statistics_dir = self.folder / "objects", self.folder / "statistics"
        shutil.rmtree(statistics_dir, ignore_errors=True)
        toolkit = self.environment.packaged_toolkit(CUDA)
        link_toolkit(toolkit, "gcc")
        settings = CacheSettings(
            objects=objects,
            statistics_dir=statistics_dir,
            toolkit=toolkit,
            site=self.environment.site_packages,
            cc=compiler.cc,
            cxx=compiler.cxx,
            cache_dir=self.folder / "kept",
            socket=self.folder / "server",
            sccache=str(self.sccache),
        )
        variables = {
            **os.environ,
            **cache_variables(settings, f"{self.environment.folder / 'bin'}:{os.environ['PATH']}"),
            "PYTHONPATH": str(settings.layout.site),
            "TORCH_CUDA_ARCH_LIST": "9.0",
            "TORCH_DONT_CHECK_COMPILER_ABI": "1",
            "CUDAARCHS": "90",
            **self.place,
            **(env or {}),
        }
        job = self.folder / "job.json"
        write_job(job, as_set(settings, variables))
        script = [*script_command(sys.executable, PACKAGE.parent, job, "with-compiler-cache"), *argv]
        done = subprocess.run(script, cwd=self.source, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return read_statistics(statistics_dir), done.stdout

    def object(self, source: str, *, fresh: bool = False) -> tuple[bytes, CacheStatistics]:
        """One source compiled; with `fresh`, by the same programs, nothing is taken from the cache."""
        compiler = ["nvcc", "-arch=sm_90"] if source.endswith(".cu") else ["g++", "-fPIC", f"-I{self.headers()}"]
        env = {"SCCACHE_NO_CACHE": "1"} if fresh else None
        found, _ = self.run(*compiler, "-Ifirst", "-Isecond", "-c", source, "-o", "out.o", env=env)
        return (self.source / "out.o").read_bytes(), found

    def stay(self) -> None:
        """Promise, as a container does, that nothing but the source tree changes what is included."""
        self.place = {"BUILDFARM_HEADERS_DIGEST": "here", "BUILDFARM_SOURCE": str(self.source)}
        self.place["BUILDFARM_PREFIX"] = str(Path(self.headers()).parents[1])

    def known(self) -> list[Path]:
        """What the cache knows of the headers of sources."""
        return sorted(path for path in (self.folder / "kept" / "preprocessor").rglob("*") if path.is_file())

    def headers(self) -> str:
        """The folder of Python's headers."""
        asked = "import sysconfig; print(sysconfig.get_path('include'))"
        return run(self.environment.interpreter, "-c", asked).out.strip()


@contextmanager
def new_machine(environment: Environment) -> Iterator[Machine]:
    program = find_sccache()
    if program is None:
        lacking("no sccache beside buildfarm's Python")
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="objects-") as folder:  # a socket's path is short
        yield Machine(Path(folder), environment, program)


@pytest.fixture
def machine(environment: Environment) -> Iterator[Machine]:
    with new_machine(environment) as made:
        yield made


@pytest.mark.parametrize("how", ["by its text", "by its headers"])
@pytest.mark.parametrize(
    ("source", "edited", "text"),
    [
        ("kernel.cu", "kernel.cu", KERNEL.replace("host one", "host two")),
        ("kernel.cu", "kernel.cu", KERNEL.replace("*out = VALUE", "*out = VALUE + 1")),
        ("kernel.cu", "value.h", "#define VALUE 2\n"),
        ("toy.cpp", "value.h", "#define VALUE 2\n"),
        ("hidden.cpp", "first/hidden.h", "int value = 2;\n"),
    ],
    ids=["host-only block", "device code", "header of a kernel", "header", "header that hides a header"],
)
def test_an_edit_never_gets_the_old_object(machine: Machine, source: str, edited: str, text: str, how: str) -> None:
    if how == "by its headers":
        machine.stay()
    old, _ = machine.object(source)
    known = machine.known()
    assert bool(known) == (how == "by its headers" and source.endswith(".cpp"))
    again, reused = machine.object(source)
    assert machine.known() == known, "what it found is what it had"
    assert again == old
    assert (reused.reused > 0, reused.compiled) == (True, 0), "the cache works, so the edit below is put to it"
    machine.write(edited, text)
    cached, _ = machine.object(source)
    fresh, alone = machine.object(source, fresh=True)
    assert alone.reused == 0
    assert cached == fresh
    assert cached != old


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_build_system_s_compilers_are_behind_the_cache(
    machine: Machine, system: str, python_of: Callable[[str], Path], venv: Callable[..., Path]
) -> None:
    files, command, steps = SYSTEMS[system]
    for name, text in files.items():
        machine.write(name, text)
    env = {}
    if system == "cmake":
        cmake = venv(python_of("3.12"), "cmake>=3.27,<5").parent
        env["PATH"] = f"{machine.folder}/objects/launch:{machine.folder}/objects/cuda/bin:{cmake}:{os.environ['PATH']}"
        env["Python_ROOT_DIR"] = str(python_of("3.12").parents[1])
    before = sorted(machine.source.iterdir())
    for all_steps_reused in (False, True):
        if system == "cmake":
            machine.run("cmake", "-S", ".", "-B", "b", env=env)  # compiles trials
        found, output = machine.run(*command, env=env)
        expected = (steps, 0) if all_steps_reused else (0, steps)
        assert (found.reused, found.compiled) == expected, output
        assert not found.not_cached
        for path in set(machine.source.iterdir()) - set(before):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_the_local_executor_reuses_what_an_edit_left_as_it_was(store: Path, tmp_path: Path) -> None:
    if find_sccache() is None:
        lacking("no sccache beside buildfarm's Python")
    build = build_for("torch2.11.0-cu130-cp312")
    recipe = replace(make.recipe("toy"), build_requires=("setuptools>=77", "wheel", "ninja"))
    executor = LocalExecutor(Environments(Store(store), "https://wheels.invalid/{variant}"))
    assert executor.prepare(build, recipe, log=tmp_path / "log").toolchain.get(Part.SCCACHE)

    def made(
        name: str, host: str, *, reuse: bool = True, executor: LocalExecutor = executor, build: Build = build
    ) -> tuple[bytes, CacheStatistics]:
        work = tmp_path / name
        (work / "src").mkdir(parents=True)
        files = {"setup.py": TORCH_SETUP.format(ninja=True), "value.h": "#define VALUE 1\n", "kernel.cu": KERNEL}
        for file, text in {**files, "toy.cpp": host}.items():
            (work / "src" / file).write_text(text)
        prepared = executor.prepare(build, recipe, log=tmp_path / "log")
        job = CompileJob(build, recipe, prepared.toolchain, work, tmp_path / "log", 2, f"test/{name}", reuse)
        compiled = prepared.compile(job, lambda _: None)
        assert compiled.objects is not None
        return compiled.wheel.read_bytes(), compiled.objects

    made("first", HOST)
    edited = HOST.replace('"toy", nullptr', '"toy", "edited"')
    cached, found = made("second", edited)
    assert (found.reused, found.compiled) == (_BOTH - 1, 1), "of toy.cpp alone"
    _, found = made("next version", edited, build=replace(build, version="1.1"))
    assert found.compiled == 0
    fresh, found = made("third", edited, reuse=False)
    assert found.reused == 0
    assert cached == fresh, "the cache changes nothing in a wheel"
    without = LocalExecutor(Environments(Store(store), "https://wheels.invalid/{variant}"), compiler_cache=False)
    _, found = made("fourth", edited, executor=without)
    assert found.refused == "it is turned off"
    # sccache calls each step of nvcc. Without sccache one temporary file has a different name, and the symbol table
    # holds that name.
    (with_cache,), (without_cache,) = ((tmp_path / name / "raw").glob("*.whl") for name in ("third", "fourth"))
    assert changed_sections(with_cache, without_cache) <= {".symtab", ".strtab", ".note.gnu.build-id"}


#: 8.0 and 8.6 share a virtual architecture, with which sccache 0.16 fails.
MANY_ARCHS = """
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
    for name, text in {
        "setup.py": MANY_ARCHS,
        "value.h": "#define VALUE 1\n",
        "kernel.cu": KERNEL,
        "toy.cpp": HOST,
    }.items():
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
TORCH_HEADER = "#include <torch/version.h>\n"
PYTHON_HEADER = "#include <patchlevel.h>\n"

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
        f"{TORCH_HEADER}int release = TORCH_VERSION_MINOR;\nstatic __constant__ float scale = 2;\n"
        "__global__ void kernel(float *p) { p[threadIdx.x] *= scale; }\n",
        *("-O3", 0, ALL - 1),
    ),
    "torch on the GPU": (
        f"{TORCH_HEADER}__global__ void kernel(float *p) {{ *p = TORCH_VERSION_MINOR; }}\n",
        "-O3",
        0,
        ALL,
    ),
    "Python in the host half": (
        f"{PYTHON_HEADER}int python = PY_VERSION_HEX;\n__global__ void kernel(float *p) {{ p[threadIdx.x] *= 2; }}\n",
        *("-O3", ALL - 1, 0),
    ),
    "Python on the GPU": (
        f"{PYTHON_HEADER}__global__ void kernel(float *p) {{ *p = PY_VERSION_HEX; }}\n",
        "-O3",
        ALL,
        0,
    ),
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
def shared(environments: dict[str, Environment]) -> Iterator[Machine]:
    """One place and one cache for all cells."""
    with new_machine(environments["first"]) as made:
        yield made


@pytest.fixture
def compiled(shared: Machine, environments: dict[str, Environment]) -> Callable[..., tuple[bytes, CacheStatistics]]:
    """Compile the kernel in the place of all cells, with the environment of one, by a script that calls nvcc."""

    def compile_in(
        cell: str, *options: str, fresh: bool = False, script: str = 'nvcc "$@"'
    ) -> tuple[bytes, CacheStatistics]:
        shared.environment = environments[cell]
        include = shared.folder / "objects" / "site" / "torch" / "include"
        headers = [include, include / "torch/csrc/api/include", shared.headers()]
        argv = ["sh", "-c", script, "nvcc", "-std=c++17", *(f"-I{path}" for path in headers), *options]
        env = {"SCCACHE_NO_CACHE": "1"} if fresh else None
        found, output = shared.run(*argv, "-c", "kernel.cu", "-o", "out.o", env=env)
        assert not found.not_cached, output
        return (shared.source / "out.o").read_bytes(), found

    return compile_in


@pytest.mark.parametrize("name", SOURCES)
def test_what_another_cell_made_equals_a_fresh_object(
    shared: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]], name: str
) -> None:
    text, option, of_python, of_torch = SOURCES[name]
    shared.write("kernel.cu", text + LAUNCH)
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
        f"#define VALUE {number()}\n{TORCH_HEADER}{PYTHON_HEADER}" + "// a line\n" * number() + "#ifdef __CUDA_ARCH__\n"
        f"#define HALF {number()}\n#else\n#define HALF {number()}\nint host() {{ return {number()}; }}\n#endif\n"
        f"static __device__ int state = {chance.choice(['1', 'VALUE', 'PY_MINOR_VERSION', 'TORCH_VERSION_MINOR'])};\n"
        f"int answer = {chance.choice(['HALF', '__LINE__', 'PY_MINOR_VERSION', 'TORCH_VERSION_MINOR'])};\n"
        f"__global__ void kernel(float *p) {{ *p += HALF + ++state + {chance.choice(['0', 'VALUE', '__LINE__'])}; }}\n"
    )


def test_edits_by_chance_never_get_an_object_of_another_text(
    shared: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]]
) -> None:
    """BUILDFARM_TEST_EDITS is their number: each takes some seconds."""
    edits, out = shared.folder / "edits", shared.folder / "out"
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
    shared: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]]
) -> None:
    shared.write("kernel.cu", f"{HALF}__global__ void kernel(float *p) {{ *p *= 4; }}\n{LAUNCH}")
    both = [HOPPER, "-gencode=arch=compute_100,code=sm_100"]
    compiled("first", HOPPER)
    cached, found = compiled("first", *both)
    assert (found.reused, found.compiled) == (3, 3), "cicc, ptxas, and the host half that holds both"
    assert cached == compiled("first", *both, fresh=True)[0]


def test_the_time_of_a_compile_is_not_that_of_another(
    shared: Machine, compiled: Callable[..., tuple[bytes, CacheStatistics]]
) -> None:
    shared.write("kernel.cu", "const char *made() { return __TIME__; }\n__global__ void kernel() {}\n")
    first, _ = compiled("first", HOPPER)
    time.sleep(1)
    second, _ = compiled("first", HOPPER)
    assert first != second
