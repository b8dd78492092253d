"""Real containers: a small C++ extension through the docker executor, its failures, what must not remain."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from builder.errors import BuildError
from builder.images.engine import Engine
from builder.images.network import ca_bundle
from builder.matrix.axes import AbiClass, Arch, Cell
from builder.matrix.config import PathSource, Recipe
from builder.matrix.plan import Build
from builder.store import Store, digest_of
from builder.wheels.build import Job
from builder.wheels.container import LABEL, environment_name
from builder.wheels.docker import DockerExecutor
from builder.wheels.environment import Environments
from builder.wheels.facts import read_facts
from builder.wheels.pythons import find_uv
from builder.wheels.repair import repair
from tests.conftest import Farm, lacking

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

BASE = "buildfarm-base:bookworm"

# libgmp (gcc's own) is not on every Linux, so it must come into the wheel; torch's libc10 must not.
SETUP = """
import sysconfig
from setuptools import Extension, setup

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
    engine = Engine()
    if problem := engine.problem():
        lacking(str(problem))
    if engine.image_id(BASE) is None:
        lacking(f"{BASE} is not there; tests/images/make-base makes it")
    farm = Store(store)
    return DockerExecutor(Environments(farm, "https://wheels.invalid/{variant}"), farm, [("*", BASE)])


@pytest.fixture
def make_job(executor: DockerExecutor, tmp_path: Path) -> Callable[[str], Job]:
    cell = Cell.parse("torch2.11.0-cu130-cp311")
    build = Build(
        extension="toy",
        version="1.0",
        abi=AbiClass.CPYTHON,
        torch=cell.torch,
        cuda=cell.cuda,
        pythons=(cell.python,),
        archs=(Arch.parse("9.0"),),
        platform=cell.platform,
        serves=(cell,),
    )
    recipe = Recipe(
        name="toy",
        version="1.0",
        summary="",
        folder=tmp_path,
        source=PathSource(tmp_path),
        patches=(),
        abi=(),
        cuda="optional",
        env={},
        build_requires=(),
        requires=(),
        assume_cuda=False,
        archs=(),
        python="",
        imports=("toy",),
        companions=(),
        libraries={},
        memory_per_job=2**30,
    )

    def make(source: str) -> Job:
        assert executor.problems([build], {"toy": recipe}) == []
        toolchain = executor.toolchain(build, recipe, log=tmp_path / "log")
        for name in ("source", "work"):
            (tmp_path / name).mkdir()
        (tmp_path / "source" / "setup.py").write_text(SETUP)
        (tmp_path / "source" / "toy.cpp").write_text(source)
        digest = digest_of(uuid4().hex)
        return Job(
            build,
            recipe,
            toolchain,
            tmp_path / "source",
            tmp_path / "work",
            tmp_path / "log",
            2,
            digest,
            f"test/{digest[:16]}",
        )

    return make


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


def environments_left(job: Job) -> list[Path]:
    """What is left in uv's cache of the environment the container made there."""
    argv = [str(find_uv()), "cache", "dir"]
    cache = Path(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip())
    assert cache.is_dir()
    return list(cache.glob(environment_name(job)))


def test_a_wheel_comes_out_and_nothing_stays_behind(
    executor: DockerExecutor, make_job: Callable[[str], Job], leave: Callable[[str], str]
) -> None:
    job = make_job(SOURCE)
    ours, others = leave(job.mark), leave(f"another/{job.digest[:16]}")
    stages: list[str] = []
    raw = executor.compile(job, stages.append)

    assert raw.name.startswith("toy-1.0-cp311-cp311-manylinux")
    assert stages == ["environment", "compile", "repair"]
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
    assert final.name.startswith("toy-1.0+cu130.torch211-cp311-cp311-manylinux")


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
    with pytest.raises(BuildError, match="setuptools") as caught:
        executor.compile(job, lambda _: None)
    assert caught.value.stage == "environment"


def test_a_second_toolchain_makes_no_second_image(executor: DockerExecutor, make_job: Callable[[str], Job]) -> None:
    job = make_job(SOURCE)
    said = job.log.read_text() if job.log.exists() else ""
    again = executor.toolchain(job.build, job.recipe, log=job.log)
    assert again == job.toolchain
    assert again.part("image").startswith("sha256:")
    assert "torch==2.11.0" in again.part("packages").split()
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
        assert Engine().read_file(tag, "/length") == f"{len('https://me:hush@wheels.invalid/simple')}\n"
        assert not Engine().read_file(tag, "/run/secrets/network")
        image = client.images.get(tag)
        assert "hush" not in str(image.history()) + str(image.attrs) + (tmp_path / "log").read_text()
    finally:
        client.images.remove(tag)
        client.close()


def test_the_main_job_in_a_container(executor: DockerExecutor, farm: Farm, store: Path, tmp_path: Path) -> None:
    """The README's extension by `--executor docker`: the same name and tags, proven like the local one."""
    del executor
    words = ["build", "--torch", "2.11", "--cuda", "13.0", "--python", "3.11", "--ext", "ms_deform_attn"]
    words += ["--arch", "9.0+PTX", "--executor", "docker", "--image", BASE]
    done = farm(*words, "--store", store, "--dist", tmp_path / "dist")
    assert done.code == 0, done.all
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith("ms_deform_attn-0.1.0+cu13-cp310-abi3-manylinux_2_")
    assert "GPU: not run" in done.out
    assert (tmp_path / "dist/simple/ms-deform-attn/index.html").is_file()
