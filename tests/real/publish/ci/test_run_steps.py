"""The written workflows, run here with a `buildfarm` that compiles nothing; pip then finds the wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder.check import Check
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.proof import proofs_json, proofs_path
from builder.publish.ci.shards import Scope, shards_json
from builder.publish.ci.workflows import WorkflowOptions, workflows
from tests.conftest import BUILDFARM, ROOT, lacking
from tests.github_actions.actions import Actions
from tests.github_actions.workflow import WorkflowRun
from tests.unit.loopback import pure_wheel
from tests.unit.publish.ci.conftest import RECIPE
from tests.unit.publish.index.make import ON_CPU, proofs_of

MATRIX = "torch: [2.11.0]\ncuda: [13.0]\npython: [3.12, 3.13]\nextensions: [ops]\n"
NAMES = [f"ops-1.0-cpython-torch2.11.0-cu130-{python}" for python in ("cp312", "cp313")]

#: `build`, `smoke` and `store` as copies of files of the folder `prepared`. Other commands are the real ones.
#: If the home folder has a file `shards`, it is the output of `plan`, and nothing is published: this is faster.
#: A file `kill` in the home folder names a Python whose compile is killed once; `compiles` lists all compiles.
#: A file `defect` names a Python whose wheel fails a check: the wheel is in the store, and not in dist.
FAKE = """\
#!/bin/bash
set -eu
case $1 in
build|smoke|store) ;;
plan) if [ -e "$HOME/shards" ]; then exec cat "$HOME/shards"; else exec "{buildfarm}" "$@"; fi ;;
*) if [ -e "$HOME/shards" ]; then exit; else exec "{buildfarm}" "$@"; fi ;;
esac
echo "$*"
if [ "${{2-}}" = --summary ]; then echo "$1 ${{*:4}}" >> "$3"; fi
python=cp${{*: -1}} python=${{python/./}}
case $1 in
build)
  kept=$HOME/.cache/buildfarm/builds/$python
  if [ ! -d "$kept" ]; then
    echo "$python" >> "$HOME/compiles"
    if [ "$(cat "$HOME/kill" 2> /dev/null)" = "$python" ]; then
      rm "$HOME/kill"
      kill -9 $$
    fi
    mkdir -p "$(dirname "$kept")"
    cp -r "{prepared}/$python" "$kept"
  fi
  if [ "$(cat "$HOME/defect" 2> /dev/null)" = "$python" ]; then exit 1; fi
  cp -r "$kept" dist ;;
smoke)
  echo "$python" >> "$HOME/smokes"
  cp "{prepared}/gpu-$python"/* dist
  for wheel in dist/*.whl; do echo changed > "$wheel"; done
  [ ! -e "$HOME/no-gpu" ] ;;
esac
"""


def prepare(folder: Path, python: str) -> None:
    """A wheel with the proofs that `build` writes, and the proofs of a GPU machine."""
    files, cell = {"ops.py": "ANSWER = 42\n"}, f"torch2.11.0-cu130-{python}"
    wheel = pure_wheel(folder / python, "ops", "1.0+cu130.torch2.11", files, tag=f"{python}-none-any")
    proofs_path(wheel).write_bytes(proofs_json(proofs_of(wheel, cells=[cell])))
    (folder / f"gpu-{python}").mkdir()
    file = folder / f"gpu-{python}" / proofs_path(wheel).name
    file.write_bytes(proofs_json(proofs_of(wheel, (*ON_CPU, Check.GPU_VALUES), cells=[cell])))


@pytest.fixture
def done(tmp_path: Path) -> WorkflowRun:
    """A run of the workflow of a repository with two builds, which was not started yet."""
    if not BUILDFARM.exists():
        lacking("the command buildfarm is not installed beside this Python")
    repository, home, programs = tmp_path / "repository", tmp_path / "home", tmp_path / "programs"
    for path, text in {
        "ops/extension.yaml": RECIPE,
        "matrix.yaml": MATRIX,
        **workflows(WorkflowOptions("./buildfarm")),
    }.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    home.mkdir()
    programs.mkdir()
    for python in ("cp312", "cp313"):
        prepare(tmp_path / "prepared", python)
    fake = FAKE.format(buildfarm=BUILDFARM, prepared=tmp_path / "prepared")
    (programs / "buildfarm").write_text(fake)
    (programs / "buildfarm").chmod(0o755)
    return WorkflowRun(
        ".github/workflows/buildfarm.yml",
        tmp_path / "run",
        Actions(repository, tmp_path / "run" / "artifacts", tmp_path / "caches"),
        {"event_name": "schedule", "ref": "refs/heads/main", "sha": "0" * 40, "repository": "owner/name"},
        env={"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")},
        programs=programs,
    )


def home(done: WorkflowRun) -> Path:
    return Path(done.env["HOME"])


def results(done: WorkflowRun) -> dict[str, str]:
    return {name: job.result for name, job in done.jobs.items()}


def compiles(done: WorkflowRun) -> list[str]:
    return (home(done) / "compiles").read_text().split()


def jobs(step: str, *values: str) -> dict[str, str]:
    return {f"wheels 0 / {name} / {step}": value for name, value in zip(NAMES, values, strict=True)}


def printed(done: WorkflowRun) -> str:
    return "\n".join(f"# {name}: {job.result}\n{job.output}" for name, job in done.jobs.items())


def new_machine(done: WorkflowRun) -> None:
    """Hosted machines start without the files of earlier jobs."""
    shutil.rmtree(home(done) / ".cache")


def test_pip_installs_from_the_published_index(done: WorkflowRun, tmp_path: Path) -> None:
    assert done.run() == "success", printed(done)
    assert list(results(done)) == [
        "plan",
        *(f"wheels 0 / {name} / {step}" for name in NAMES for step in ("build", "smoke")),
        "publish",
    ]
    assert "2 builds serve 2 cells" in done.jobs["plan"].summary
    assert (
        "build --ext ops --torch 2.11.0 --cuda 13.0 --python 3.12\n"
        in done.jobs[next(iter(jobs("build", "", "")))].summary
    )
    assert "ops-1.0+cu130.torch2.11" in done.jobs["publish"].summary
    index = done.actions.artifacts / "index" / "cu130"
    argv = [sys.executable, "-m", "pip", "--isolated", "install", "--no-deps", "--no-cache-dir", "--target"]
    options = ["--index-url", index.as_uri(), "--disable-pip-version-check", "--python-version", "3.12"]
    words = [*argv, str(tmp_path / "installed"), *options, "--only-binary", ":all:", "ops"]
    installed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "installed" / "ops.py").read_text() == "ANSWER = 42\n"
    check = [str(BUILDFARM), "index", "check", str(index.parent)]
    assert subprocess.run(check, check=False, cwd=ROOT).returncode == 0


def test_a_wheel_without_gpu_proofs_is_refused(done: WorkflowRun) -> None:
    workflow = done.actions.repository / ".github/workflows/buildfarm-wheel.yml"
    workflow.write_text(workflow.read_text().replace("buildfarm smoke", "true"))
    assert done.run() == "failure"
    assert results(done)["publish"] == "failure"
    summary = " ".join(done.jobs["publish"].summary.split())
    assert "gpu-values: not run" in summary, "the summary is written after a failed step"
    assert not list((done.actions.artifacts / "index").rglob("*.whl"))


def test_a_second_attempt_and_the_next_night_compile_only_what_is_missing(done: WorkflowRun) -> None:
    _, _, plan = read_plan(done.actions.repository / "matrix.yaml", Selection())
    (home(done) / "shards").write_text(shards_json(plan, Scope.FULL))
    (home(done) / "kill").write_text("cp313")
    assert done.run() == "failure"
    assert results(done) == {
        "plan": "success",
        **jobs("build", "success", "failure"),
        **jobs("smoke", "success", "skipped"),
        "publish": "success",
    }, "the finished wheel is tested and published"
    assert compiles(done) == ["cp312", "cp313"]
    new_machine(done)
    assert done.run() == "success"
    assert compiles(done) == ["cp312", "cp313", "cp313"]
    assert (home(done) / "smokes").read_text().split() == ["cp312", "cp313"], "no test runs again"
    new_machine(done)
    shutil.rmtree(done.actions.artifacts)
    done.jobs, done.github = {}, {**done.github, "sha": "1" * 40}
    assert done.run() == "success"
    assert compiles(done) == ["cp312", "cp313", "cp313"], "actions/cache has the wheels of the commit before"


def test_a_wheel_with_a_failed_check_is_not_compiled_again_each_night(done: WorkflowRun) -> None:
    _, _, plan = read_plan(done.actions.repository / "matrix.yaml", Selection())
    (home(done) / "shards").write_text(shards_json(plan, Scope.FULL))
    (home(done) / "defect").write_text("cp313")
    for night in range(3):
        done.jobs = {}
        assert done.run() == "failure"
        expected = {**jobs("build", "success", "failure"), **jobs("smoke", "success", "skipped")}
        assert results(done) == {"plan": "success", **expected, "publish": "success"}
        assert compiles(done) == ["cp312", "cp313"], f"night {night}"
        new_machine(done)
        shutil.rmtree(done.actions.artifacts)


def test_a_pull_request_of_a_fork_builds_the_newest_cell_and_tests_nothing(done: WorkflowRun) -> None:
    head = {"head": {"repo": {"full_name": "somebody/name"}}}
    done.github = {**done.github, "event_name": "pull_request", "event": {"pull_request": head}}
    assert done.run() == "success"
    newest = "ops-torch2.11.0-cu130-cp313"
    assert results(done) == {
        "plan": "success",
        f"wheels 0 / {newest} / build": "success",
        f"wheels 0 / {newest} / smoke": "skipped",
        "publish": "skipped",
    }


def test_a_start_by_hand_can_select_builds(done: WorkflowRun) -> None:
    done.github, done.inputs = {**done.github, "event_name": "workflow_dispatch"}, {"select": "--python 3.13"}
    assert done.run() == "success", printed(done)
    assert list(results(done)) == [
        "plan",
        *(f"wheels 0 / {NAMES[1]} / {step}" for step in ("build", "smoke")),
        "publish",
    ]
    assert "1 build serves 1 cell" in done.jobs["plan"].summary


def test_a_start_by_hand_for_one_torch_publishes_nothing(done: WorkflowRun) -> None:
    inputs = {"select": "--torch 2.11 --python 3.13"}
    done.github, done.inputs = {**done.github, "event_name": "workflow_dispatch"}, inputs
    assert done.run() == "success", printed(done)
    built = {f"wheels 0 / {NAMES[1]} / {step}": "success" for step in ("build", "smoke")}
    assert results(done) == {"plan": "success", **built, "publish": "skipped"}


def test_a_wrong_matrix_fails_the_job_plan(done: WorkflowRun) -> None:
    (done.actions.repository / "matrix.yaml").write_text(MATRIX.replace("cuda", "cudo"))
    assert done.run() == "failure"
    assert results(done) == {"plan": "failure", "wheels": "skipped", "publish": "skipped"}
    assert "cudo" in done.jobs["plan"].output
