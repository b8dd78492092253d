"""Twelve builds over three CUDA versions on two workers, one of which has no Docker: they make what local runs make."""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import needs_images
from tests.fixtures.container_farm import PATIENCE, PYTHONS, container_farm
from tests.fixtures.distributed_farm import CANNED, CHILD, DistributedFarm
from tests.fixtures.small_project import SmallProject
from tests.unit.canned_gate import answer

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

#: Its nvcc stands in for CUDA 12.6 and 12.8. For CUDA 13.0 the package index has a toolkit.
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
