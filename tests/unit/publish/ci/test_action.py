"""The action of this repository, used by a workflow of a different repository."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.github_actions.actions import Actions
from tests.github_actions.expressions import NotEmulated
from tests.github_actions.workflow import WorkflowRun

USE = """\
on: push
permissions: {contents: read}
jobs:
  wheels:
    runs-on: ubuntu-latest
    outputs:
      dist: ${{ steps.buildfarm.outputs.dist }}
    steps:
      - uses: actions/checkout@v7
      - uses: owner/buildfarm@v1
        id: buildfarm
        with:
          args: build --torch 2.11 --ext "$(touch evil)"
          working-directory: kernels
      - uses: actions/upload-artifact@v7
        with:
          name: wheels
          path: ${{ steps.buildfarm.outputs.dist }}
"""

FAKE = """\
#!/bin/bash
if [ "$1" = store ]; then echo "pruned $*"; exit; fi
printf '%s\\n' "$@" > "$HOME/words"
if [ -d "$HOME/.cache/buildfarm/builds" ]; then echo reused; fi
mkdir -p dist "$HOME/.cache/buildfarm/builds"
touch dist/x.whl "$HOME/.cache/buildfarm/builds/x"
[ ! -e "$HOME/defect" ]
"""


@pytest.fixture
def done(tmp_path: Path) -> WorkflowRun:
    (tmp_path / "repository" / "kernels").mkdir(parents=True)
    (tmp_path / "repository" / "use.yml").write_text(USE)
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "buildfarm").write_text(FAKE)
    (tmp_path / "programs" / "buildfarm").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    actions = Actions(
        tmp_path / "repository", tmp_path / "artifacts", tmp_path / "caches", published={"owner/buildfarm": ROOT}
    )
    github = {"event_name": "push", "sha": "1234"}
    return WorkflowRun(
        "use.yml", tmp_path / "run", actions, github, env={"HOME": str(home)}, programs=tmp_path / "programs"
    )


def test_the_action_runs_the_command_and_names_the_wheels(done: WorkflowRun) -> None:
    assert done.run() == "success", done.jobs
    home = Path(done.env["HOME"])
    assert (home / "words").read_text().split("\n")[:4] == ["build", "--torch", "2.11", "--ext"]
    assert not list(done.folder.rglob("evil"))
    assert Path(done.jobs["wheels"].outputs["dist"]).parent.name == "kernels"
    assert [file.name for file in (done.actions.artifacts / "wheels").iterdir()] == ["x.whl"]


def test_the_next_run_has_the_store_of_the_run_before(done: WorkflowRun) -> None:
    done.run()
    home = Path(done.env["HOME"])
    (home / ".cache").rename(home / "gone")
    done.jobs, done.github = {}, {**done.github, "sha": "5678"}
    (done.actions.artifacts / "wheels").rename(home / "old")
    assert done.run() == "success", done.jobs
    assert "reused" in done.jobs["wheels"].output


def test_a_run_with_a_failed_check_keeps_its_store(done: WorkflowRun) -> None:
    home = Path(done.env["HOME"])
    (home / "defect").touch()
    assert done.run() == "failure"
    assert "reused" not in done.jobs["wheels"].output
    (home / ".cache").rename(home / "gone")
    done.jobs = {}
    assert done.run() == "failure", "the same commit"
    assert "reused" in done.jobs["wheels"].output
    assert "pruned store prune" in done.jobs["wheels"].output


def test_the_action_twice_in_one_job_saves_twice(done: WorkflowRun) -> None:
    workflow = done.actions.repository / "use.yml"
    again = (
        "      - uses: owner/buildfarm@v1\n        with:\n          args: smoke\n          working-directory: kernels\n"
    )
    workflow.write_text(workflow.read_text() + again)
    assert done.run() == "success", done.jobs
    assert len(list(done.actions.caches.iterdir())) == 2


def test_no_script_of_the_action_holds_an_expression() -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert len([step for step in steps if "run" in step]) == 3
    assert not [step for step in steps if "${{" in step.get("run", "")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("actions/checkout@v7", "actions/setup-node@v7"),
        ("      - uses: actions/checkout@v7\n", "      - run: echo ${{ github.sha }}\n"),
        ("      - uses: actions/checkout@v7\n", "      - run: Get-Item .\n        shell: pwsh\n"),
        ("        id: buildfarm\n", "        id: buildfarm\n        continue-on-error: true\n"),
        ("    runs-on: ubuntu-latest\n", "    runs-on: ubuntu-latest\n    container: debian\n"),
        ("on: push", "on: pull_request"),
    ],
)
def test_a_run_refuses_what_it_does_not_emulate(done: WorkflowRun, old: str, new: str) -> None:
    workflow = done.actions.repository / "use.yml"
    assert old in workflow.read_text()
    workflow.write_text(workflow.read_text().replace(old, new))
    with pytest.raises(NotEmulated):
        done.run()
