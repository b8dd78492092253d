"""Real cells in containers: the main job, three CUDA versions on one machine, and twelve builds on two workers."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import pytest

from builder.matrix.axes import Python
from builder.wheelfile.compatibility import is_compatible
from builder.wheels.cibuildwheel.config import PACKAGES_VOLUME
from tests.conftest import ROOT, Farm, free_disk, needs_images
from tests.fixtures.built_cells import assert_proven, record, report
from tests.fixtures.container_farm import BASE, PATIENCE, PYTHONS, container_farm
from tests.fixtures.distributed_farm import CANNED, CHILD, DistributedFarm
from tests.fixtures.small_project import SmallProject
from tests.unit.canned_gate import answer

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]


#: The torch version that other tests use too.
COMMON = "2.11"


@pytest.fixture
def own(store: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """A store and a uv cache that are deleted after the test: a torch that no other test uses has 9 GB.

    The engine's volume of packages is deleted too, because no later test uses it.
    """
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params["torch"] == COMMON:
        yield {"BUILDFARM_STORE": str(store)}
        return
    folders = {"BUILDFARM_STORE": str(tmp_path / "store"), "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    yield folders
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)  # a skipped test did not create them
    free_disk(PACKAGES_VOLUME)


def declare(folder: Path, torch: str, cuda: str, pythons: str, arch: str, image: str, toolkit: str) -> None:
    """Write a matrix.yaml with one extension and one image for all cells."""
    needs_images(image, PYTHONS)
    (folder / "matrix.yaml").write_text(
        f"torch: [{torch}]\ncuda: [{cuda}]\npython: [{pythons}]\narchs: [{arch}]\n"
        f"extensions: ['{ROOT / 'extensions/ms_deform_attn'}']\n"
        f"images:\n  - {{cells: '*', image: '{image}', pythons: '{PYTHONS}', toolkit: {toolkit}}}\n"
    )


@pytest.mark.parametrize(
    ("torch", "cuda", "python", "arch", "image", "toolkit", "cell"),
    [
        (COMMON, "13.0", "3.12", "9.0", "buildfarm-cuda:13.0-bookworm", "13.0", "torch2.11.0-cu130-cp312"),
        ("2.6", "12.4", "3.12", "9.0", "buildfarm-cuda:12.4-trixie", "12.4", "torch2.6.0-cu124-cp312"),
        ("2.0", "11.7", "3.11", "8.6", "buildfarm-cuda:11.8-bookworm", "11.8", "torch2.0.1-cu117-cp311"),
    ],
    ids=["cuda13", "cuda12", "cuda11"],
)
def test_a_cell_of_each_major(
    farm: Farm,
    own: dict[str, str],
    tmp_path: Path,
    torch: str,
    cuda: str,
    python: str,
    arch: str,
    image: str,
    toolkit: str,
    cell: str,
) -> None:
    declare(tmp_path, torch, cuda, python, arch, image, toolkit)
    ran = farm("build", "--executor", "docker", cwd=tmp_path, env=own)
    assert_proven(ran, tmp_path, {cell})
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    toolchain = record(wheel)["toolchain"]
    assert toolchain["nvcc"].startswith(f"{toolkit}.")
    assert ("stands in for" in toolchain) is (cuda != toolkit)
    # Debian trixie has a newer glibc than bookworm, so this machine cannot install that wheel.
    proofs = {p["check"]: p for b in report(tmp_path)["builds"] for p in b["proofs"]}
    in_container = not is_compatible(wheel.name, Python.parse(python))
    assert ("image" in proofs["import"]["evidence"]) is in_container
    if in_container:
        where = proofs["gpu-values"]["evidence"]["where"]
        assert where["image"].startswith(f"buildfarm/run-{cell}:")
        assert proofs["gpu-values"]["reason"] == where["no_gpu"]


#: It also compiles for CUDA 12.6 and 12.8. For CUDA 13.0 the package index has a toolkit.
IMAGE = "buildfarm-cuda:12.4-trixie"
EXTENSIONS = ("one", "two", "three", "four")

#: The volumes of these tests, in each process that starts containers.
VOLUMES = """
if {child!r} in _words or {{"buildfarm", "build"}} <= set(_words):
    from builder.wheels.cibuildwheel import config
    config.PACKAGES_VOLUME = {name!r}
    config.OBJECTS_VOLUME = {name!r} + "-objects"
"""


def test_two_workers_make_what_local_runs_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_images(IMAGE, PYTHONS)
    name, parts = f"buildfarm-test-{uuid4().hex[:8]}", tmp_path / "farm"
    for folder in ("canned", "holds", "stores", "dask"):
        (parts / folder).mkdir(parents=True)
    file = parts / "canned" / "answer.json"
    file.write_text(json.dumps(asdict(answer())))
    code = CANNED.format(child=CHILD, answer=str(file)) + VOLUMES.format(child=CHILD, name=name)
    (parts / "canned" / "sitecustomize.py").write_text(code)
    with container_farm(tmp_path / "project", name) as made:
        for variant, version in (("cu126", "12.6"), ("cu128", "12.8")):
            libraries = made.root / "torch-lib"
            made.index.add_torch(f"2.11.0+{variant}", version, channel=f"whl/{variant}", libraries=libraries)
        variables = made.environment({})
        for variable in os.environ.keys() - variables.keys():
            monkeypatch.delenv(variable)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("DASK_CONFIG", str(parts / "dask"))
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        project = SmallProject(made.root, made.index)
        farm = DistributedFarm(project, parts)
        farm.recipes(*EXTENSIONS)
        matrix = project.root / "matrix.yaml"
        text = matrix.read_text().replace("cuda: [13.0]", "cuda: [12.6, 12.8, 13.0]")
        rule = f"{{cells: '*', image: '{IMAGE}', pythons: '{PYTHONS}', toolkit: 12.4}}"
        matrix.write_text(f"{text}images:\n  - {rule}\n")
        try:
            farm.start_scheduler()
            farm.start_worker("with-docker", wait=False)
            with monkeypatch.context() as patch:
                patch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
                farm.start_worker("without-docker", wait=False)
            for program in farm.workers.values():
                program.says("connected to")
            assert "no Docker" in farm.workers["without-docker"].text
            assert "no Docker" not in farm.workers["with-docker"].text
            client = farm.start_client("--executor", "auto", "--allow-cuda-minor-mismatch")
            assert client.code(PATIENCE) == 0, client.text
            output = client.text
            remote = farm.wheels()
            assert len(remote) == 12, output
            assert len(set(re.findall(r"cu12[68]\.torch2\.11-\S+: compile.* on (\S+)", output))) <= 1
            assert " on without-docker" in output, "the worker without Docker took part"
            for words in (["13.0"], ["12.6", "--cuda", "12.8", "--executor", "docker"]):
                here = farm.start_here(
                    "--allow-cuda-minor-mismatch", "--cuda", *words
                )  # the record of each wheel names the option
                assert here.code(PATIENCE) == 0, here.text
            assert farm.wheels("dist-here") == remote
        finally:
            farm.end()


def test_the_main_job_in_a_container(farm: Farm, store: Path, tmp_path: Path) -> None:
    """The README's extension, nvcc from the package index: same name, tags and checks as with the local executor."""
    needs_images(BASE, PYTHONS)
    (tmp_path / "matrix.yaml").write_text(
        "torch: [2.11]\ncuda: [13.0]\npython: [3.12]\narchs: [9.0+PTX]\n"
        f"extensions: ['{ROOT / 'extensions/ms_deform_attn'}']\n"
        f"images:\n  - {{cells: '*', image: '{BASE}', pythons: '{PYTHONS}'}}\n"
    )
    done = farm("build", "--executor", "docker", "--store", store, cwd=tmp_path).ok()
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith("ms_deform_attn-0.1.0+cu13-cp310-abi3-manylinux_2_")
    assert re.search(r"^  not run +GPU +no GPU on this machine$", done.out, re.MULTILINE), done.out
    assert list((tmp_path / "dist").glob("ms_deform_attn-*.whl"))
