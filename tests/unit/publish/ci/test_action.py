"""The actions and the nightly workflow of this repository: their scripts, with programs that note their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.publish.ci.steps import StepRun, program, run_step, step_named
from tests.unit.publish.ci.test_workflows import ACTION, VERIFY, WORKFLOWS

STEPS = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
VERIFY_STEPS = yaml.safe_load(VERIFY.read_text())["runs"]["steps"]
#: Notes its arguments.
FAKE = """\
printf '%s\\n' "$@" > "$HOME/words"
echo a verdict
exit "$(cat "$HOME/code")"
"""


def run(step: str, home: Path, code: int = 0, **env: str) -> StepRun:
    """Run a step of an action with a `buildfarm` that ends with this code."""
    (home / "code").write_text(str(code))
    # The actions put their own programs first.
    program(home, "buildfarm", FAKE)
    (home / "runner" / "buildfarm").mkdir(parents=True, exist_ok=True)
    (home / "runner" / "buildfarm" / "bin").symlink_to(home / "programs")
    steps = STEPS if step == "Run buildfarm" else VERIFY_STEPS
    return run_step(step_named(steps, step), home, home / "programs", HOME=str(home), **env)


@pytest.mark.parametrize("code", [0, 1])
def test_the_action_runs_the_command_and_names_the_wheels(tmp_path: Path, code: int) -> None:
    (tmp_path / "kernels").mkdir()
    ran = run("Run buildfarm", tmp_path, code, ARGS='build --torch 2.11 --ext "$(touch evil)"', FOLDER="kernels")
    assert ran.code == code
    assert (tmp_path / "words").read_text().split("\n")[:4] == ["build", "--torch", "2.11", "--ext"]
    assert not list(tmp_path.rglob("evil"))
    assert f"dist={tmp_path}/kernels/dist\n" in ran.output


@pytest.mark.parametrize("code", [0, 1, 2])
def test_verdicts_are_in_the_summary_and_decide(tmp_path: Path, code: int) -> None:
    ran = run("Verify the wheels", tmp_path, code, WHEELS="dist more/x.whl", ARGS='--gpu "$(touch evil)"')
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:4] == ["verify", "--gpu", '"$(touch', 'evil)"']
    assert words[-3:] == ["--", "dist", "more/x.whl"]
    assert not list(tmp_path.rglob("evil"))
    assert (ran.code, ran.summary) == (code, "    a verdict\n")


def test_a_failed_verdict_keeps_the_symbols_that_were_read() -> None:
    assert VERIFY_STEPS[-1]["if"] == "${{ !cancelled() }}"
    assert VERIFY_STEPS[-1]["with"]["key"].endswith("${{ github.run_id }}"), "GitHub never changes an entry"


def test_a_run_with_a_failed_check_keeps_its_store() -> None:
    for name in ("Remove older builds from the store", "Save the wheels and proofs for later runs"):
        assert step_named(STEPS, name)["if"] == "${{ !cancelled() }}"
    key = step_named(STEPS, "Save the wheels and proofs for later runs")["with"]["key"]
    assert key.endswith("${{ github.run_id }}-${{ steps.run.outputs.time }}"), "GitHub never changes an entry"


def test_a_failed_night_opens_an_issue_before_its_job_is_cancelled(tmp_path: Path) -> None:
    job = yaml.safe_load((WORKFLOWS / "nightly.yml").read_text())["jobs"]["session"]
    assert step_named(job["steps"], "Run the session")["timeout-minutes"] < job["timeout-minutes"]
    programs = program(tmp_path, "gh", 'case "$1 $2" in "issue create") echo "$4" > "$RUNNER_TEMP/title" ;; esac\n')
    given = {"GH_TOKEN": "token", "GH_REPO": "owner/name", "SESSION": "all", "RUN": "URL"}
    ran = run_step(step_named(job["steps"], "Open an issue"), tmp_path, programs, **given)
    assert ran.code == 0, ran.printed
    assert (tmp_path / "runner" / "title").read_text() == "nox -s all fails\n"
