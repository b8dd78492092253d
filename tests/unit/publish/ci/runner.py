"""Runs the steps of a job of a workflow on this machine, in order, as a runner of GitHub would.

What it emulates: `run:` steps in bash with the options of GitHub; `env:`; `${{ }}` for the values that a test gives;
GITHUB_OUTPUT, GITHUB_PATH, GITHUB_STEP_SUMMARY, RUNNER_TEMP; `if: ${{ !cancelled() }}`; upload-artifact and
download-artifact, as far as the workflows of `buildfarm ci` use them.

What it does not emulate: GitHub's expressions (an expression without a given value is an error), `needs`, `if` of a
job, the expansion of a matrix, called workflows, permissions, environments, concurrency, containers, time limits, other
actions (checkout and setup-python do nothing), and the images of the runners. The step that installs buildfarm is left
out: the job finds the `buildfarm` of these tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")


class StepFailed(Exception):  # noqa: N818 - it reads as what happened
    """A step of the job ended with an error; the text is the step's output."""


@dataclass
class Runner:
    """Runs jobs in one folder, with artifacts that the jobs of one run share.

    Attributes:
        workspace: the folder of the checkout.
        temp: folder for the files of the runner; the folder `artifacts` in it holds a folder for each artifact.
        values: the value of each expression, by its text.
        programs: the folder with `buildfarm`.

    """

    workspace: Path
    temp: Path
    values: Mapping[str, str] = field(default_factory=dict)
    programs: Path = Path(sys.executable).parent

    @property
    def artifacts(self) -> Path:
        return self.temp / "artifacts"

    @property
    def summary(self) -> str:
        return (self.temp / "summary.md").read_text()

    def run(self, job: Mapping[str, Any]) -> dict[str, str]:
        """Run the steps of a job; return what they wrote to GITHUB_OUTPUT.

        Raises StepFailed after the last step that runs in spite of a failure.
        """
        self.temp.mkdir(exist_ok=True, parents=True)
        failure: StepFailed | None = None
        for step in job["steps"]:
            condition = step.get("if", "")
            assert condition in {"", "${{ !cancelled() }}"}, condition
            if failure is None or condition:
                try:
                    self._step(step)
                except StepFailed as error:
                    failure = failure or error
        if failure:
            raise failure
        output = self.temp / "output"
        return dict(line.split("=", 1) for line in output.read_text().splitlines()) if output.exists() else {}

    def _step(self, step: Mapping[str, Any]) -> None:
        action = step.get("uses", "").partition("@")[0]
        given = {name: self._value(str(value)) for name, value in step.get("with", {}).items()}
        if action == "actions/upload-artifact":
            self._upload(given)
        elif action == "actions/download-artifact":
            self._download(given)
        elif action:
            assert action in {"actions/checkout", "actions/setup-python"}, action
        elif step.get("name") != "Install buildfarm":
            self._bash(step["run"], {name: self._value(str(value)) for name, value in step.get("env", {}).items()})

    def _bash(self, script: str, env: Mapping[str, str]) -> None:
        assert "${{" not in script, "an expression in a script lets its value inject code"
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        names = {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_PATH": "path"}
        files = {name: str(self.temp / file) for name, file in names.items()}
        (self.temp / "step.sh").write_text(script)
        done = subprocess.run(
            [*_SHELL, str(self.temp / "step.sh")],
            cwd=self.workspace,
            env={**os.environ, **files, "RUNNER_TEMP": str(self.temp), "PATH": path, "GITHUB_ACTIONS": "true", **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StepFailed(done.stdout + done.stderr)

    def _value(self, text: str) -> str:
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: self.values[match[1]], text)

    def _upload(self, given: Mapping[str, str]) -> None:
        target = self.artifacts / given["name"]
        shutil.rmtree(target, ignore_errors=True)
        found = [path for line in given["path"].split() for path in sorted(self.workspace.glob(line))]
        if not found and given.get("if-no-files-found") == "error":
            raise StepFailed(f"no file for {given['path']}")
        for path in found:  # the content of one folder, or files of one folder
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns(".*"))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)

    def _download(self, given: Mapping[str, str]) -> None:
        pattern = given.get("pattern") or given["name"]
        assert "name" in given or given["merge-multiple"] == "True", "else each artifact gets a folder"
        found = sorted(self.artifacts.glob(pattern))
        if not found and "name" in given:
            raise StepFailed(f"no artifact {pattern}")
        for artifact in found:
            shutil.copytree(artifact, self.workspace / given["path"], dirs_exist_ok=True)
