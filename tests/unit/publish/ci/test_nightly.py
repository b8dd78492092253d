"""The nightly workflow of this repository opens an issue for each kind of failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT
from tests.unit.publish.ci.steps import program, run_step

#: `gh`, which knows no issue, and keeps a new one.
GH = """\
case "$1 $2" in "issue create") echo "$4" > "$RUNNER_TEMP/title" ;; esac
"""


def steps() -> dict[str, dict[str, Any]]:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]["session"]
    return {step.get("name", ""): {**step, "of the job": job["timeout-minutes"]} for step in job["steps"]}


def test_a_failure_before_the_session_opens_an_issue(tmp_path: Path) -> None:
    programs = program(tmp_path, "gh", GH)
    given = {"GH_TOKEN": "token", "GH_REPO": "owner/name", "SESSION": "all", "RUN": "URL"}
    ran = run_step(steps()["Open an issue"], tmp_path, programs, **given)
    assert ran.code == 0, ran.printed
    assert (tmp_path / "runner" / "title").read_text() == "nox -s all fails\n"


def test_a_session_that_takes_too_long_fails_before_the_job_is_cancelled() -> None:
    step = steps()["Run the session"]
    assert step["timeout-minutes"] < step["of the job"]
