"""Runs the script of one step of a workflow or an action, as a runner of GitHub does."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StepRun:
    """What a step did."""

    code: int
    #: Output of the script, both streams.
    printed: str
    #: Contents of GITHUB_OUTPUT and of GITHUB_STEP_SUMMARY.
    output: str
    summary: str


def step_named(steps: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The step of this name."""
    (found,) = [step for step in steps if step.get("name") == name]
    return found


def run_step(step: Mapping[str, Any], folder: Path, programs: Path, **env: str) -> StepRun:
    """Run a script in `folder`, with the options of `shell: bash`. `programs` is the first folder of PATH.

    `env` gives the variables whose values are expressions of GitHub; each variable of the step must be given or plain.
    """
    plain = {key: str(value) for key, value in step.get("env", {}).items() if "${{" not in str(value)}
    assert step.get("env", {}).keys() <= plain.keys() | env.keys(), "a variable of the step has no value"
    assert "${{" not in step["run"], "an expression in a script lets its value inject code"
    temp = folder / "runner"
    temp.mkdir(exist_ok=True)
    output, summary = temp / "output", temp / "summary"
    output.write_text("")
    summary.write_text("")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "RUNNER_TEMP": str(temp),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_PATH": str(temp / "path"),
            **plain,
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return StepRun(done.returncode, done.stdout, output.read_text(), summary.read_text())


def program(folder: Path, name: str, text: str) -> Path:
    """Write a script for bash into the folder `programs`; return this folder."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / name).write_text(f"#!/bin/bash\n{text}")
    (programs / name).chmod(0o755)
    return programs
