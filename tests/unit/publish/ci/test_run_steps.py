"""The `run:` steps of the written workflow, run here in order: plan, then publish; pip then finds the wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.check import Check
from builder.publish.ci.options import WorkflowOptions
from builder.publish.ci.workflows import workflows
from builder.publish.index.new_wheel import proofs_json, proofs_path
from tests.conftest import BUILDFARM, ROOT, lacking
from tests.unit.loopback import pure_wheel
from tests.unit.publish.ci.runner import Runner, StepFailed
from tests.unit.publish.ci.test_workflows import MATRIX, RECIPE
from tests.unit.publish.index.make import ON_CPU, proofs_of

SCOPE = "github.event_name == 'pull_request' && 'newest' || 'full'"
NAME = "ops-1.0-cpython-torch2.11.0-cu130-cp312"


@pytest.fixture
def jobs() -> dict[str, Any]:
    written = workflows(WorkflowOptions("."))
    return dict(yaml.safe_load(written[".github/workflows/buildfarm.yml"])["jobs"])


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    if not BUILDFARM.exists():
        lacking("the command buildfarm is not installed beside this Python")
    monkeypatch.setenv("BUILDFARM_STORE", str(tmp_path / "store"))
    workspace = tmp_path / "workspace"
    (workspace / "ops").mkdir(parents=True)
    (workspace / "ops" / "extension.yaml").write_text(RECIPE)
    (workspace / "matrix.yaml").write_text(MATRIX)
    return Runner(workspace, tmp_path / "runner", {SCOPE: "full"})


def artifacts(runner: Runner, *, tested_on_gpu: bool = True) -> Path:
    """What the jobs `build` and `smoke` upload: a wheel with its proofs, and new proofs of the GPU machine."""
    folder = runner.artifacts / f"wheels-{NAME}"
    wheel = pure_wheel(folder, "ops", "1.0+cu130.torch211", {"ops.py": "ANSWER = 42\n"})
    proofs_path(wheel).write_bytes(proofs_json(proofs_of(wheel)))
    if tested_on_gpu:
        (runner.artifacts / f"proofs-{NAME}").mkdir()
        file = runner.artifacts / f"proofs-{NAME}" / proofs_path(wheel).name
        file.write_bytes(proofs_json(proofs_of(wheel, (*ON_CPU, Check.GPU_VALUES))))
    return wheel


def test_the_plan_is_the_matrix_of_the_next_job(runner: Runner, jobs: dict[str, Any]) -> None:
    output = runner.run(jobs["plan"])
    ((job,),) = [shard["include"] for shard in json.loads(output["shards"])]
    assert job == {"name": NAME, "select": "--ext ops --torch 2.11.0 --cuda 13.0 --python 3.12"}
    assert "1 build serves 1 cell" in runner.summary


def test_a_wrong_matrix_fails_the_job_plan(runner: Runner, jobs: dict[str, Any]) -> None:
    (runner.workspace / "matrix.yaml").write_text(MATRIX.replace("cuda", "cudo"))
    with pytest.raises(StepFailed, match="cudo"):
        runner.run(jobs["plan"])


def test_pip_installs_from_the_published_index(runner: Runner, jobs: dict[str, Any], tmp_path: Path) -> None:
    runner.run(jobs["plan"])
    artifacts(runner)
    runner.run(jobs["publish"])
    assert "ops-1.0+cu130.torch211" in runner.summary
    index = runner.artifacts / "index" / "cu130"
    argv = [sys.executable, "-m", "pip", "--isolated", "install", "--no-deps", "--no-cache-dir", "--target"]
    options = ["--index-url", index.as_uri(), "--disable-pip-version-check", "ops"]
    done = subprocess.run([*argv, str(tmp_path / "installed"), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed" / "ops.py").read_text() == "ANSWER = 42\n"


def test_a_wheel_without_gpu_proofs_is_refused(runner: Runner, jobs: dict[str, Any]) -> None:
    artifacts(runner, tested_on_gpu=False)
    with pytest.raises(StepFailed):
        runner.run(jobs["publish"])
    assert "gpu-values: not run" in runner.summary, "the summary is written after a failed step"
    assert not list((runner.workspace / "index").rglob("*.whl"))


def test_proofs_of_another_file_are_refused(runner: Runner, jobs: dict[str, Any]) -> None:
    wheel = artifacts(runner)
    other = pure_wheel(runner.temp / "other", "ops", "1.0+cu130.torch211", {"ops.py": "ANSWER = 43\n"})
    shutil.copy(other, wheel)
    with pytest.raises(StepFailed, match="proofs of a different file"):
        runner.run(jobs["publish"])


FAKE = """\
#!/bin/sh
echo "$*"
mkdir -p dist
case $1 in
build) echo wheel > dist/x.whl; echo built > dist/x.whl.proofs.json; echo page > dist/report.json ;;
smoke) echo changed > dist/x.whl; echo tested > dist/x.whl.proofs.json; exit 1 ;;
esac
"""


def test_a_gpu_machine_hands_on_its_proofs_and_no_wheel(runner: Runner, tmp_path: Path) -> None:
    """With a fake buildfarm whose `smoke` finds a failure and changes the wheel."""
    runner.programs = tmp_path / "bin"
    runner.programs.mkdir()
    (runner.programs / "buildfarm").write_text(FAKE)
    (runner.programs / "buildfarm").chmod(0o755)
    runner.values = {"matrix.name": NAME, "matrix.select": "--ext ops --torch 2.11.0"}
    shard = yaml.safe_load(workflows(WorkflowOptions("."))[".github/workflows/buildfarm-shard.yml"])["jobs"]
    runner.run(shard["build"])
    assert "build --ext ops --torch 2.11.0\n" in runner.summary
    shutil.rmtree(runner.workspace / "dist")
    with pytest.raises(StepFailed):
        runner.run(shard["smoke"])
    assert "smoke --ext ops --torch 2.11.0\n" in runner.summary
    uploaded = {
        folder.name: {file.name: file.read_text() for file in folder.iterdir()} for folder in runner.artifacts.iterdir()
    }
    assert uploaded == {
        f"wheels-{NAME}": {"x.whl": "wheel\n", "x.whl.proofs.json": "built\n"},
        f"proofs-{NAME}": {"x.whl.proofs.json": "tested\n"},
    }


def test_the_index_of_this_run_is_complete(runner: Runner, jobs: dict[str, Any]) -> None:
    artifacts(runner)
    runner.run(jobs["publish"])
    argv = [str(BUILDFARM), "index", "check", str(runner.artifacts / "index")]
    assert subprocess.run(argv, check=False, cwd=ROOT).returncode == 0
