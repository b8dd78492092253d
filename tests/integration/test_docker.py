"""Real containers: a small C++ extension through the docker executor, its failures, what must not remain."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from builder.errors import BuildError, MissingToolError
from builder.images.container import LABEL
from builder.images.engine import Engine
from builder.images.network import ca_bundle
from builder.images.specs import Choice
from builder.matrix.axes import AbiClass, Arch, Cell
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule
from builder.matrix.plan import Build
from builder.store import Store, digest_of
from builder.wheels.build import Job
from builder.wheels.container import PACKAGES_VOLUME, environment_name
from builder.wheels.docker import DockerExecutor
from builder.wheels.environment import Environments
from builder.wheels.facts import read_facts
from builder.wheels.repair import repair
from tests.conftest import ROOT, Farm, lacking, needs_images, storage_driver
from tests.unit.matrix import make

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

BASE, PYTHONS = "buildfarm-base:bookworm", "buildfarm-pythons:local"
CELL = Cell.parse("torch2.11.0-cu130-cp312")

# libgmp (gcc's own) is not on every Linux, so it must come into the wheel; torch's libc10 must not.
SETUP = """
import os, shutil, sysconfig
from setuptools import Extension, setup

print("built by", os.getuid(), "with", shutil.which("nvcc"), "of", os.environ["CUDA_HOME"])
print("group of the root folder may", os.stat("/").st_mode >> 3 & 7)

torch = sysconfig.get_path("platlib") + "/torch/lib"
flags = ["-Wl,--no-as-needed", "-lc10", "-l:libgmp.so.10"]
toy = Extension("toy", ["toy.cpp"], library_dirs=[torch], extra_link_args=flags)
setup(name="toy", version="1.0", ext_modules=[toy])
"""

SOURCE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "toy", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_toy() { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def executor(store: Path) -> DockerExecutor:
    needs_images(BASE, PYTHONS)
    farm = Store(store)
    matrix = replace(make.matrix(["2.11"], ["13.0"], ["3.12"]), images=(ImageRule("*", BASE, PYTHONS),))
    choice = Choice(matrix, Compat.load(), {})
    return DockerExecutor(Environments(farm, "https://wheels.invalid/{variant}"), farm, choice)


@pytest.fixture
def make_job(executor: DockerExecutor, tmp_path: Path) -> Callable[[str], Job]:
    archs = (Arch.parse("9.0"),)
    build = Build("toy", "1.0", AbiClass.CPYTHON, CELL.torch, CELL.cuda, (CELL.python,), archs, CELL.platform, (CELL,))
    recipe = make.recipe("toy")

    def make_it(source: str) -> Job:
        assert executor.problems([build], {"toy": recipe}) == []
        toolchain = executor.toolchain(build, recipe, log=tmp_path / "log")
        for name in ("source", "work"):
            (tmp_path / name).mkdir()
        (tmp_path / "source" / "setup.py").write_text(SETUP)
        (tmp_path / "source" / "toy.cpp").write_text(source)
        digest = digest_of(uuid4().hex)
        source_folder, work, log = (tmp_path / name for name in ("source", "work", "log"))
        return Job(build, recipe, toolchain, source_folder, work, log, 2, digest, f"test/{digest[:16]}")

    return make_it


@pytest.fixture
def leave() -> Iterator[Callable[[str], str]]:
    """Makes a container such as a killed farm leaves: running, labelled with its job's mark; returns its id."""
    made: list[str] = []

    def start(mark: str) -> str:
        made.append(mark)
        argv = ["docker", "run", "--detach", "--label", f"{LABEL}={mark}", BASE, "sleep", "600"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    yield start
    for mark in made:
        Engine().reap(f"{LABEL}={mark}")


def containers(mark: str = "") -> list[str]:
    """Ids of the containers of a job, or of all jobs, running or not."""
    argv = ["docker", "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={mark}".removesuffix("=")]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def environments_left(job: Job) -> list[str]:
    """What is left in the volume of packages of the environment the container made there."""
    argv = ["docker", "run", "--rm", f"--volume={PACKAGES_VOLUME}:/packages", BASE, "ls", "/packages"]
    names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert names, "the packages are kept"
    return [name for name in names if name.startswith(environment_name(job)) and not name.endswith(".lock")]


def test_a_wheel_comes_out_and_nothing_stays_behind(
    executor: DockerExecutor, make_job: Callable[[str], Job], leave: Callable[[str], str]
) -> None:
    job = make_job(SOURCE)
    ours, others = leave(job.mark), leave(f"another/{job.digest[:16]}")
    stages: list[str] = []
    raw = executor.compile(job, stages.append)

    assert raw.name.startswith("toy-1.0-cp312-cp312-manylinux")
    assert list(dict.fromkeys(stages)) == ["environment", "compile", "repair", "copy"]
    said = next(line.split() for line in job.log.read_text().splitlines() if "built by" in line)
    assert said[2] == "1000", "a build's user is not root"
    assert said[4] == f"{said[6]}/bin/nvcc", "PATH begins with the cell's toolkit"
    assert f"group of the root folder may {0 if storage_driver() == 'fuse-overlayfs' else 5}" in job.log.read_text()
    assert containers(job.mark) == []
    assert ours not in containers()
    assert others in containers(), "another farm's container is not ours to end"
    assert environments_left(job) == []

    facts = read_facts(raw)
    assert [Path(library.path).name.split("-")[0] for library in facts.libraries if "toy.libs" in library.path] == [
        "libgmp"
    ]
    assert any("libc10.so" in library.needed for library in facts.libraries)

    provided = executor.libraries(job)
    assert {"libc10.so", "libtorch_cpu.so", "libcudart.so.13"} <= provided
    final = repair(
        raw,
        job.work / "final",
        provided=provided,
        local_version="cu130.torch211",
        torch_requirement="torch==2.11.*",
        log=job.log,
    )
    assert final.name.startswith("toy-1.0+cu130.torch211-cp312-cp312-manylinux")


def test_a_source_that_does_not_compile(executor: DockerExecutor, make_job: Callable[[str], Job]) -> None:
    job = make_job("int broken = nothing_of_that_name;\n")
    with pytest.raises(BuildError, match="nothing_of_that_name") as caught:
        executor.compile(job, lambda _: None)
    assert (caught.value.stage, caught.value.log) == ("compile", job.log)
    assert containers(job.mark) == []
    assert environments_left(job) == []


def test_packages_that_cannot_be_had(executor: DockerExecutor, make_job: Callable[[str], Job]) -> None:
    job = make_job(SOURCE)
    parts = {**dict(job.toolchain.parts), "packages": "setuptools==0.0.0.1"}
    job = replace(job, toolchain=replace(job.toolchain, parts=tuple(parts.items())))
    with pytest.raises(MissingToolError, match=r"does not have what is needed.*setuptools"):
        executor.compile(job, lambda _: None)
    assert containers(job.mark) == []
    assert environments_left(job) == []


def test_a_second_toolchain_makes_no_second_image(executor: DockerExecutor, make_job: Callable[[str], Job]) -> None:
    job = make_job(SOURCE)
    said = job.log.read_text() if job.log.exists() else ""
    again = executor.toolchain(job.build, job.recipe, log=job.log)
    assert again == job.toolchain
    assert again.part("image").startswith("buildfarm/build-cu130-buildfarm-base-bookworm-gcc12-cp312:")
    packages = again.part("packages").split()
    assert "torch==2.11.0" in packages
    assert not [package for package in packages if package.startswith("triton")], "which no compile reads"
    assert (job.log.read_text() if job.log.exists() else "") == said


def test_a_secret_reaches_the_step_and_no_layer(tmp_path: Path) -> None:
    if problem := Engine().problem():
        lacking(str(problem))
    (tmp_path / "network").write_text("export UV_DEFAULT_INDEX=https://me:hush@wheels.invalid/simple\n")
    tag = f"buildfarm-test:{uuid4().hex[:12]}"
    text = (
        f"FROM {BASE}\nRUN --mount=type=secret,id=network,target=/run/secrets/network"
        " --mount=type=secret,id=ca,target=/run/secrets/ca"
        " . /run/secrets/network && echo ${#UV_DEFAULT_INDEX} >/length && test -s /run/secrets/ca\n"
    )
    secrets = {"network": tmp_path / "network", "ca": ca_bundle()}
    client = docker.from_env()
    try:
        Engine().build(text, tag, log=tmp_path / "log", job="secrets", secrets=secrets)
        assert Engine().ask(tag, "cat /length") == f"{len('https://me:hush@wheels.invalid/simple')}\n"
        assert Engine().ask(tag, "test ! -s /run/secrets/network && echo none") == "none\n"
        image = client.images.get(tag)
        assert "hush" not in str(image.history()) + str(image.attrs) + (tmp_path / "log").read_text()
    finally:
        client.images.remove(tag)
        client.close()


def test_the_main_job_in_a_container(executor: DockerExecutor, farm: Farm, store: Path, tmp_path: Path) -> None:
    """The README's extension, nvcc from the package index: the same name and tags, proven like the local one."""
    del executor
    (tmp_path / "matrix.yaml").write_text(
        "torch: [2.11]\ncuda: [13.0]\npython: [3.12]\narchs: [9.0+PTX]\n"
        f"extensions: ['{ROOT / 'extensions/ms_deform_attn'}']\n"
        f"images:\n  - {{cells: '*', image: '{BASE}', pythons: '{PYTHONS}'}}\n"
    )
    done = farm("build", "--executor", "docker", "--store", store, cwd=tmp_path)
    assert done.code == 0, done.all
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith("ms_deform_attn-0.1.0+cu13-cp310-abi3-manylinux_2_")
    assert "GPU: not run" in done.out
    assert (tmp_path / "dist/simple/ms-deform-attn/index.html").is_file()
