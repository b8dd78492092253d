"""The action `verify` of this repository, used by a workflow of a different repository."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.github_actions.actions import Actions
from tests.github_actions.workflow import WorkflowRun

ACTION = ROOT / ".github" / "actions" / "verify"
USE = """\
on: push
permissions: {{contents: read}}
jobs:
  verify:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v7
      - uses: owner/buildfarm/.github/actions/verify@v1
        with:
          wheels: dist more/x.whl
          args: --gpu "$(touch evil)"
          {inputs}
"""
#: Writes its arguments; makes the files that it is asked for unless the file `unreadable` exists.
FAKE = """\
#!/bin/bash
printf '%s\\n' "$@" > "$HOME/words-$1"
if [ "$1" = inventory ]; then mkdir -p "$HOME/.cache/buildfarm/inventories"; exit; fi
[ -f "$HOME/unreadable" ] && exit 2
while [ $# -gt 0 ]; do
  [ "$1" = --markdown ] && echo '### a wheel' > "$2"
  shift
done
exit "$(cat "$HOME/code")"
"""


def started(folder: Path, code: int, inputs: str = "") -> WorkflowRun:
    (folder / "repository").mkdir()
    (folder / "repository" / "use.yml").write_text(USE.format(inputs=inputs))
    (folder / "programs").mkdir()
    (folder / "programs" / "buildfarm").write_text(FAKE)
    (folder / "programs" / "buildfarm").chmod(0o755)
    (folder / "home").mkdir()
    (folder / "home" / "code").write_text(str(code))
    published = {"owner/buildfarm/.github/actions/verify": ACTION}
    actions = Actions(folder / "repository", folder / "artifacts", folder / "caches", published=published)
    github = {"event_name": "push", "sha": "1234"}
    env = {"HOME": str(folder / "home")}
    return WorkflowRun("use.yml", folder / "run", actions, github, env=env, programs=folder / "programs")


@pytest.mark.parametrize(("code", "ends"), [(0, "success"), (1, "failure")])
def test_verdicts_are_in_the_summary_and_decide(code: int, ends: str, tmp_path: Path) -> None:
    done = started(tmp_path, code)
    assert done.run() == ends, done.jobs
    words = (tmp_path / "home" / "words-verify").read_text().splitlines()
    assert words[:4] == ["verify", "--gpu", '"$(touch', 'evil)"']
    assert words[-3:] == ["--", "dist", "more/x.whl"]
    assert not list(tmp_path.rglob("evil"))
    assert "### a wheel" in done.jobs["verify"].summary
    assert not (tmp_path / "home" / "words-inventory").exists()


def test_unreadable_wheel_fails(tmp_path: Path) -> None:
    done = started(tmp_path, 0)
    (tmp_path / "home" / "unreadable").write_text("")
    assert done.run() == "failure"
    assert "exit code 2" in done.jobs["verify"].output


def test_inputs(tmp_path: Path) -> None:
    done = started(tmp_path, 0, "torch: 2.11 2.12")
    assert done.run() == "success", done.jobs
    words = (tmp_path / "home" / "words-inventory").read_text().splitlines()
    assert words == ["inventory", "add", "2.11", "2.12"]


def test_symbols_are_read_once_also_if_a_wheel_is_refused(tmp_path: Path) -> None:
    done = started(tmp_path, 1, "torch: 2.11 2.12")
    for _ in range(2):
        assert done.run() == "failure", done.jobs
        assert "exit code 1" in done.jobs["verify"].output
        done.jobs = {}
        assert [file.name for file in done.actions.caches.iterdir()] == ["buildfarm-inventories-2.11 2.12.tar"]


def test_no_script_holds_an_expression() -> None:
    steps = yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"]
    assert not [step for step in steps if "${{" in step.get("run", "")]
