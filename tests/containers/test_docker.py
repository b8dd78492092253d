"""The docker executor with real containers: images, builds, failures, kills, and the compiler of Rocky Linux 8."""

import base64
import contextlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import docker
import pytest
from docker.errors import ImageNotFound

from builder.errors import BuildError, MissingToolError
from builder.images.container import OWNER_LABEL
from builder.images.dockerfiles import render_template
from builder.images.engine import Engine
from builder.images.image_build import inspect_image
from builder.images.network import ca_bundle, ca_variables, shell_settings
from builder.images.registry import VARIABLE, read_lock
from builder.images.specs import ImageChooser
from builder.matrix.axes import Cuda
from builder.matrix.compat import Compat
from builder.matrix.config import GitSource, ImageRule, Selection
from builder.matrix.load import read_plan
from builder.store import Store
from builder.wheelfile.facts import read_facts
from builder.wheels.cibuildwheel.config import PACKAGES_VOLUME
from builder.wheels.cibuildwheel.executor import DockerExecutor
from builder.wheels.job import CompileJob
from builder.wheels.repair.relabel import Label
from builder.wheels.repair.repair import repair
from builder.wheels.toolchain.environments import Environments
from tests.conftest import ROOT, Farm, free_disk, lacking, needs_images, run, wait_until
from tests.fixtures.built_cells import assert_proven, record
from tests.fixtures.container_farm import ContainerFarm, container_farm, ended, error_text, small_disk
from tests.images.registry import (
    CUDA_IMAGE,
    LOGIN,
    PYTHONS_IMAGE,
    RUNTIME_IMAGE,
    LocalRegistry,
    a_layer,
    remove_images,
    running_registry,
)
from tests.unit.matrix import make
from tests.unit.wheels.make_record import build_for

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

BASE, PYTHONS = "buildfarm-base:bookworm", "buildfarm-pythons:local"

# libgmp of gcc is not on every Linux system, so it must be copied into the wheel; libc10 of torch must not.
SETUP = """
import os, shutil, sysconfig
from setuptools import Extension, setup

print("built by", os.getuid(), "with", shutil.which("nvcc"), "of", os.environ["CUDA_HOME"])

torch = sysconfig.get_path("platlib") + "/torch/lib"
flags = ["-Wl,--no-as-needed", "-lc10", "-l:libgmp.so.10"]
toy = Extension("toy", ["../csrc/toy.cpp"], library_dirs=[torch], extra_link_args=flags)
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
    chooser = ImageChooser(matrix, Compat.load(), {})
    return DockerExecutor(Environments(farm, "https://wheels.invalid/{variant}"), farm, chooser)


@pytest.fixture
def make_job(executor: DockerExecutor, tmp_path: Path) -> Callable[[str], CompileJob]:
    build = build_for("torch2.11.0-cu130-cp312")
    source = GitSource("https://host.invalid/toy", "0" * 40, "bindings")
    recipe = replace(make.recipe("toy"), source=source)

    def make_it(code: str) -> CompileJob:
        assert executor.problems([build], {"toy": recipe}) == []
        toolchain = executor.prepare(build, recipe, log=tmp_path / "log").toolchain
        job = CompileJob(build, recipe, toolchain, tmp_path / "work", tmp_path / "log", 2, f"test/{uuid4().hex[:16]}")
        for name, text in (("bindings/setup.py", SETUP), ("csrc/toy.cpp", code)):
            (job.tree / name).parent.mkdir(parents=True)
            (job.tree / name).write_text(text)
        return job

    return make_it


@pytest.fixture
def leave() -> Iterator[Callable[[str], str]]:
    """Start a container as a killed run leaves it: running, with its owner's label. Returns its id."""
    made: list[str] = []

    def start(owner: str) -> str:
        made.append(owner)
        argv = ["docker", "run", "--detach", "--label", f"{OWNER_LABEL}={owner}", BASE, "sleep", "600"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    yield start
    for owner in made:
        Engine().remove_containers(owner)


def containers(owner: str = "") -> list[str]:
    """Ids of the containers of a job, or of all jobs, running or not."""
    label = f"label={OWNER_LABEL}={owner}".removesuffix("=")
    argv = ["docker", "ps", "--all", "--quiet", "--no-trunc", "--filter", label]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def test_a_wheel_is_built_and_nothing_is_left(
    executor: DockerExecutor, make_job: Callable[[str], CompileJob], leave: Callable[[str], str]
) -> None:
    job = make_job(SOURCE)
    ours, others = leave(job.owner), leave(f"another/{uuid4().hex[:16]}")
    stages: list[str] = []
    compiled = executor.prepare(job.build, job.recipe, log=job.log).compile(job, stages.append)
    raw = compiled.wheel

    assert raw.name.startswith("toy-1.0-cp312-cp312-manylinux")
    assert list(dict.fromkeys(stages)) == ["environment", "compile", "repair", "copy"]
    fields = next(line.split() for line in job.log.read_text().splitlines() if "built by" in line)
    assert fields[2] == "1000", "a build's user is not root"
    assert fields[4] == f"{fields[6]}/bin/nvcc", "PATH begins with the cell's toolkit"
    assert containers(job.owner) == []
    assert ours not in containers()
    assert others in containers(), "containers of other stores are not removed"

    facts = read_facts(raw)
    assert [Path(library.path).name.split("-")[0] for library in facts.libraries if "toy.libs" in library.path] == [
        "libgmp"
    ]
    assert any("libc10.so" in library.needed for library in facts.libraries)

    assert {"libc10.so", "libtorch_cpu.so", "libcudart.so.13"} <= compiled.libraries
    label = Label("cu130.torch2.11", "torch==2.11.*")
    final = repair(raw, job.work / "final", label, provided=compiled.libraries, log=job.log)
    assert final.name.startswith("toy-1.0+cu130.torch2.11-cp312-cp312-manylinux")


def test_a_source_that_does_not_compile(executor: DockerExecutor, make_job: Callable[[str], CompileJob]) -> None:
    job = make_job("int broken = nothing_of_that_name;\n")
    with pytest.raises(BuildError, match="nothing_of_that_name") as caught:
        executor.prepare(job.build, job.recipe, log=job.log).compile(job, lambda _: None)
    assert (caught.value.stage, caught.value.log) == ("compile", job.log)
    assert containers(job.owner) == []


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
        Engine().build(text, tag, log=tmp_path / "log", owner="secrets", secrets=secrets)
        assert (
            Engine().run_script(tag, "cat /length", owner="probe")
            == f"{len('https://me:hush@wheels.invalid/simple')}\n"
        )
        assert Engine().run_script(tag, "test ! -s /run/secrets/network && echo none", owner="probe") == "none\n"
        image = client.images.get(tag)
        assert "hush" not in str(image.history()) + str(image.attrs) + (tmp_path / "log").read_text()
    finally:
        with suppress(ImageNotFound):  # the build failed
            client.images.remove(tag)
        client.close()


@pytest.fixture(scope="module")
def small_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


def test_interrupted_and_killed_runs_and_then_a_wheel(small_farm: ContainerFarm) -> None:
    package = small_farm.recipe("ended")
    for ending, barrier, volume in (
        (signal.SIGTERM, small_farm.fetches, ""),
        (signal.SIGHUP, small_farm.compiles, ""),
        (signal.SIGINT, small_farm.compiles, ""),
        (signal.SIGINT, small_farm.fetches, f"{small_farm.packages}.empty"),
    ):
        with small_farm.held(barrier, packages=volume) as run:
            assert small_farm.containers()
            run.send_signal(ending)
            done = ended(run)
        assert done.code == 130, done.all
        assert "interrupted; finished builds are kept" in done.err
        small_farm.nothing_left()
        assert small_farm.wheels() == []

    left = set[str]()
    for _ in range(2):  # and the same job again
        with small_farm.held(small_farm.compiles) as run:
            assert not left & set(small_farm.containers()), "the container of the killed run is still running"
            run.kill()
            ended(run)
            left = set(small_farm.containers())
        assert left
    (package / "_C.c").write_text((package / "_C.c").read_text().replace("42", "43"))  # so this job never runs again
    small_farm.build().ok()
    assert small_farm.containers() == []
    small_farm.nothing_left()
    assert len(small_farm.wheels()) == 1


def test_the_disk_is_full_under_the_store(small_farm: ContainerFarm) -> None:
    small_farm.recipe("cramped")
    store = small_farm.root / "cramped-store"
    with small_disk(store):
        with (
            small_farm.held(small_farm.compiles, store=store.name) as run,
            contextlib.suppress(OSError),
            (store / "filler").open("wb") as filler,
        ):
            while True:
                filler.write(bytes(4096))
                filler.flush()
        errors = error_text(ended(run), 1)
        assert "the disk is full" in errors, errors
        assert not list((store / "builds").iterdir())
        assert small_farm.containers(store.name) == []
        (store / "filler").unlink()
        small_farm.build(store=store.name).ok()


@pytest.fixture
def own(registry: LocalRegistry, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The mirror, and a store and a uv cache that are deleted after the test: no later test uses this torch."""
    remove_images(registry.address)
    folders = {"BUILDFARM_STORE": str(tmp_path / "store"), "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    yield {**folders, VARIABLE: f"docker.io={registry.address} quay.io={registry.address}"}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    free_disk(PACKAGES_VOLUME)


def test_the_headline_command(farm: Farm, registry: LocalRegistry, own: dict[str, str], tmp_path: Path) -> None:
    """`buildfarm build --torch 2.2 --cuda 12.1` with the repository's matrix.yaml; only the mirror is configured.

    Two options save time: one extension and one GPU architecture. `--allow-cuda-minor-mismatch` accepts CUDA 12.4,
    because the packages of the substitute have no CUDA 12.1.
    """
    command = ("build", "--torch", "2.2", "--cuda", "12.1", "--dist", tmp_path / "dist")
    ran = farm(*command, "--ext", "ms_deform_attn", "--arch", "9.0", "--allow-cuda-minor-mismatch", env=own)
    assert_proven(ran, tmp_path, {f"torch2.2.2-cu121-cp{minor}" for minor in (310, 311, 312)})
    assert "executor: docker (no CUDA 12.1 toolkit on this machine)" in ran.err
    assert re.search(rf"pulling 2 base images: \S+/{CUDA_IMAGE}, \S+/{PYTHONS_IMAGE}\n", ran.err)
    assert re.search(rf"pulled {CUDA_IMAGE} \(\d+:\d\d\)", ran.err)
    wheels = sorted((tmp_path / "dist").glob("*.whl"))
    assert [wheel.name.split("-")[:4] for wheel in wheels] == [
        ["ms_deform_attn", "0.1.0+cu121.torch2.2", f"cp{minor}", f"cp{minor}"] for minor in (310, 311, 312)
    ]
    assert ran.out.count("compiled with CUDA 12.4.131 instead of CUDA 12.1") == 3
    for wheel in wheels:
        toolchain = record(wheel)["toolchain"]
        assert (toolchain["nvcc"], toolchain["stands in for"]) == ("12.4.131", "CUDA 12.1")
        assert toolchain["c++"].startswith("g++ 12."), "nvcc cannot compile the headers of torch 2.2 with gcc 13"
        assert CUDA_IMAGE in json.dumps(record(wheel))
        assert registry.address not in json.dumps(record(wheel)), "a record names the original image"

    again = farm(*command, "--ext", "ms_deform_attn", "--arch", "9.0", "--allow-cuda-minor-mismatch", env=own)
    assert "pull" not in again.err
    assert again.err.count("already built") == 3


def test_pinned_images_are_found_after_a_pull_from_the_mirror(
    farm: Farm, registry: LocalRegistry, own: dict[str, str], tmp_path: Path
) -> None:
    """`render --lock` asks the mirror; the engine's builder finds the image by the digest, which no tag can name."""
    (tmp_path / "extensions").symlink_to(ROOT / "extensions")
    shutil.copyfile(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    select = ("--torch", "2.2", "--cuda", "12.1", "--python", "3.11")
    farm("render", "--lock", *select, cwd=tmp_path, env=own).ok()
    lock = read_lock(tmp_path / "buildfarm.lock")
    assert set(lock) == {CUDA_IMAGE, RUNTIME_IMAGE, f"quay.io/{PYTHONS_IMAGE}"}
    remove_images(registry.address)

    matrix, _, plan = read_plan(tmp_path / "matrix.yaml", Selection(("2.2",), ("12.1",), ("3.11",)))
    image = ImageChooser(matrix, Compat.load(), lock, minor_mismatch=True).build_image(plan.builds[0])
    assert image.base == f"{CUDA_IMAGE}@{lock[CUDA_IMAGE]}"
    engine = Engine({"docker.io": registry.address, "quay.io": registry.address})
    log = tmp_path / "log"
    _, contents = inspect_image(engine, Store(tmp_path / "store"), image, log=log)
    assert contents.nvcc == "12.4.131", log.read_text()


def test_a_registry_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `docker login`, a pull is refused; a missing tag is an error of its own."""
    needs_images()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with running_registry(tmp_path, password=True) as registry:
        registry.publish("team/small:1", [a_layer(tmp_path)])
        login = base64.b64encode(":".join(LOGIN).encode()).decode()
        image, absent = f"{registry.address}/team/small:1", f"{registry.address}/team/small:2"
        with pytest.raises(MissingToolError, match=r"team/small:1 cannot be pulled .* requires a login"):
            Engine().base_id(image)
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {registry.address: {"auth": login}}}))
        with pytest.raises(MissingToolError, match=r"team/small:2 cannot be pulled .* has no such image"):
            Engine().base_id(absent)
        assert Engine().base_id(image).startswith("sha256:")
        remove_images(registry.address)


ROCKY = "buildfarm-cuda:12.1-rockylinux8"
#: The key of the dnf repository, which names a folder of dnf's cache: one for each run of the test.
KEY = f"test-{uuid4().hex[:12]}"

#: Serves the packages of the image over HTTPS.
SERVER = """
set -e
cd /srv/rpms
address=$(hostname -i)
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext "subjectAltName=IP:$address" \
    -keyout /key -out /certificate 2>/dev/null
exec python3 -c '
import http.server, ssl
server = http.server.ThreadingHTTPServer(("", 443), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/certificate", "/key")
server.socket = context.wrap_socket(server.socket, server_side=True)
open("/ready", "w").close()
server.serve_forever()'
"""


class Repository:
    """An HTTPS server with RPM packages, in a container."""

    def __init__(self) -> None:
        started = run("docker", "run", "--detach", ROCKY, "bash", "-c", SERVER).ok()
        self._id = started.out.strip()
        wait_until(
            lambda: run("docker", "exec", self._id, "test", "-e", "/ready").code == 0,
            lambda: f"ready: {run('docker', 'logs', self._id).all}",
            300,
        )
        self.address = self("hostname -i")
        self.certificate = self("cat /certificate")

    def __call__(self, command: str) -> str:
        """Output of a command in the container."""
        done = run("docker", "exec", "--workdir=/srv/rpms", self._id, "bash", "-c", command).ok()
        return done.out.strip()

    def served(self) -> list[str]:
        """The paths that were sent."""
        return [
            line.split('"')[1].split()[1]
            for line in run("docker", "logs", self._id).err.splitlines()
            if '" 200 ' in line
        ]

    def remove(self) -> None:
        """End the server."""
        run("docker", "rm", "--force", self._id)


@pytest.fixture(scope="module")
def repository() -> Iterator[Repository]:
    needs_images(ROCKY)
    server = Repository()
    yield server
    server.remove()


@pytest.fixture
def tags() -> Iterator[list[str]]:
    """Tags of images, which are removed after the test."""
    made: list[str] = []
    yield made
    run("docker", "image", "rm", *made)


def base(repository: Repository, tags: list[str], log: Path) -> str:
    """The substitute with packages from the server instead of a folder."""
    tag = f"buildfarm-test:rockylinux8-{uuid4().hex[:12]}"
    text = (
        f"FROM {ROCKY}\nRUN rm -r /srv/rpms && sed -i 's#^baseurl=file:.*#baseurl=https://{repository.address}/#;"
        f" s#^.buildfarm.#[{KEY}]#' /etc/yum.repos.d/buildfarm.repo"
        f" && touch -d 2020-01-01 /etc/yum.repos.d/* && touch /{tag}\n"  # dnf updates its cache after a change
    )
    Engine().build(text, tag, log=log, owner="test", secrets={})
    tags.append(tag)
    return tag


def install(name: str, bundle: Path, tags: list[str], log: Path) -> None:
    """Build the rendered steps up to the compiler on a base image, with this CA bundle."""
    matrix = make.matrix(["2.2"], ["12.1"], ["3.11"])
    matrix = replace(matrix, images=(ImageRule("*", name, toolkit=Cuda(12, 4)),))
    image = ImageChooser(matrix, Compat.load(), {}).build_image(build_for("torch2.2.2-cu121-cp311"))
    text = render_template(image.template, image)
    steps = text[text.index(f"FROM {name} AS build") : text.index("ENV CUDA_HOME")]
    network = log.with_name("network")
    network.write_text(shell_settings(ca_variables("/run/secrets/ca")))
    tag = f"{name}-built"
    Engine().build(steps, tag, log=log, owner="test", secrets={"ca": bundle, "network": network})
    tags.insert(0, tag)


def test_dnf_installs_the_compiler(repository: Repository, tags: list[str], tmp_path: Path) -> None:
    log, bundle = tmp_path / "log", tmp_path / "bundle.pem"
    bundle.write_text(ca_bundle().read_text() + repository.certificate)
    first = base(repository, tags, log)
    with pytest.raises(MissingToolError, match="certificate is not trusted"):
        install(first, ca_bundle(), tags, log)
    install(first, bundle, tags, log)
    assert any("/gcc-toolset-12-gcc-" in path for path in repository.served())
    programs = Engine().run_script(tags[0], "readlink -f $(which g++ git make find)", owner="probe").split()
    assert programs[0].startswith("/opt/rh/gcc-toolset-12/root/usr/bin/")
    assert len(programs) == 4

    # A day later, the server has a newer package in place of the old one. dnf's cache still names the old one.
    repository("mv x86_64/which-*.rpm x86_64/which-new.rpm && rm -r repodata && createrepo_c --quiet .")
    install(base(repository, tags, log), bundle, tags, log)
    assert any(path.endswith("/which-new.rpm") for path in repository.served())
