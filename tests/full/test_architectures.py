"""A source that names its own GPU architectures and threads of nvcc: real nvcc, with and without the compiler cache."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from builder.matrix.axes import Cuda, Python
from builder.store import Store
from builder.wheelfile.facts import Library, read_facts
from builder.wheels.build_scripts.new_environment import link_toolkit
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.sccache.configure import find_sccache
from builder.wheels.toolchain.environments import Environments, toolkit_requirements
from tests.conftest import lacking
from tests.full.test_object_cache import HOST, KERNEL
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
