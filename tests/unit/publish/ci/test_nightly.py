"""The nightly workflow of this repository opens an issue for each kind of failure."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

#: `gh`, which knows no issue, and keeps a new one.
GH = """\
#!/bin/bash
case "$1 $2" in "issue create") echo "$4" > "$RUNNER_TEMP/title" ;; esac
"""


def steps() -> dict[str, dict[str, Any]]:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]["session"]
    return {step.get("name", ""): {**step, "of the job": job["timeout-minutes"]} for step in job["steps"]}


def test_a_failure_before_the_session_opens_an_issue(tmp_path: Path) -> None:
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path), "SESSION": "all", "RUN": "URL"}
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps()["Open an issue"]["run"]]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "title").read_text() == "nox -s all fails\n"


def test_a_session_that_takes_too_long_fails_before_the_job_is_cancelled() -> None:
    step = steps()["Run the session"]
    assert step["timeout-minutes"] < step["of the job"]
