"""Runs the steps of one job on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.github_actions.actions import Actions, StepFailed
from tests.github_actions.expressions import NotEmulated, Unset, as_text, holds, text_of

_SHELLS = {
    "": ("bash", "-e"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail"),
}
_STEP = frozenset({"name", "id", "if", "uses", "with", "env", "run", "shell", "timeout-minutes", "working-directory"})
#: Names of the steps that install buildfarm, or hand it on to other jobs.
INSTALL = frozenset(
    {"Install buildfarm", "Collect buildfarm for the GPU machines", "Upload buildfarm", "Download buildfarm"}
)
#: Files that a step writes, by the variable that names them.
_FILES = ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")


@dataclass
class Job:
    """One job while it runs."""

    #: For the workspace, RUNNER_TEMP and the files of the runner.
    folder: Path
    #: What `uses:` of a step may name.
    actions: Actions
    #: `github`, `matrix`, `needs`, `inputs`, ...; `steps`, `env` and `runner` are added.
    contexts: Mapping[str, Any]
    #: Variables of all steps.
    env: dict[str, str]
    #: The shell of steps that name none.
    shell: str = ""
    #: A folder with `buildfarm`; the steps of INSTALL are then left out.
    programs: Path | None = None
    output: str = ""
    summary: str = ""
    failed: bool = False

    def __post_init__(self) -> None:
        self.workspace, self.temp = self.folder / "workspace", self.folder / "temp"
        self.steps: dict[str, Any] = {}
        self.path = [str(self.programs)] if self.programs else []

    def run(self, steps: list[Mapping[str, Any]], outputs: Mapping[str, str]) -> dict[str, str]:
        """Run the steps; return the outputs of the job. `failed` says whether a step failed."""
        for folder in (self.workspace, self.temp):
            folder.mkdir(parents=True)
        self._run_steps(steps, self.contexts, self.steps)
        return {name: text_of(text, self._all(self.contexts, self.steps)) for name, text in outputs.items()}

    def _run_steps(
        self, steps: list[Mapping[str, Any]], contexts: Mapping[str, Any], done: dict[str, Any], action: str = ""
    ) -> None:
        for step in steps:
            if unknown := set(step) - _STEP:
                raise NotEmulated(f"{sorted(unknown)} of a step")
            every = self._all(contexts, done)
            status = {
                "success": lambda: not self.failed,
                "failure": lambda: self.failed,
                "cancelled": lambda: False,
                "always": lambda: True,
            }
            outputs: dict[str, str] = {}
            if holds(step.get("if", "success()"), every, status):
                try:
                    outputs = self._step(step, every, action)
                except StepFailed as error:
                    self.failed, self.output = True, f"{self.output}{error}\n"
            if "id" in step:
                done[step["id"]] = {"outputs": Unset(outputs)}

    def _all(self, contexts: Mapping[str, Any], done: Mapping[str, Any]) -> dict[str, Any]:
        runner = {"temp": str(self.temp), "os": "Linux", "arch": "X64"}
        return {**contexts, "steps": done, "env": self.env, "runner": runner}

    def _step(self, step: Mapping[str, Any], contexts: Mapping[str, Any], action: str) -> dict[str, str]:
        given = {name: text_of(value, contexts) for name, value in step.get("with", {}).items()}
        env = {name: text_of(value, contexts) for name, value in step.get("env", {}).items()}
        if self.programs and step.get("name") in INSTALL:
            return {}
        if "run" in step:
            return self._script(step, env, action)
        name = str(step["uses"])
        if folder := self.actions.composite(name, self.workspace):
            return self._composite(folder, given, contexts)
        return self.actions.run(name.partition("@")[0], given, self)

    def _composite(self, folder: Path, given: Mapping[str, str], contexts: Mapping[str, Any]) -> dict[str, str]:
        action = yaml.safe_load((folder / "action.yml").read_text())
        declared = action.get("inputs", {})
        if unknown := set(given) - set(declared):
            raise StepFailed(f"the action has no input {sorted(unknown)}")
        missing = [name for name, value in declared.items() if value.get("required") and name not in given]
        if missing:
            raise StepFailed(f"the action needs the input {missing}")
        inputs = {name: given.get(name, as_text(value.get("default", ""))) for name, value in declared.items()}
        inner = {**contexts, "inputs": inputs, "github": {**contexts["github"], "action_path": str(folder)}}
        done: dict[str, Any] = {}
        self._run_steps(action["runs"]["steps"], inner, done, str(folder))
        if self.failed:
            raise StepFailed("the action failed")
        outputs = action.get("outputs", {})
        return {name: text_of(o["value"], self._all(inner, done)) for name, o in outputs.items()}

    def _script(self, step: Mapping[str, Any], env: Mapping[str, str], action: str) -> dict[str, str]:
        script, shell = str(step["run"]), str(step.get("shell", self.shell))
        if "${{" in script:
            raise NotEmulated("an expression in a script, which lets its value inject code")
        if shell not in _SHELLS or (action and not step.get("shell")):
            raise NotEmulated(f"the shell {shell!r} of a step")
        files = {name: self.folder / name.lower() for name in _FILES}
        for file in files.values():
            file.write_text("")
        program = self.folder / "step.sh"
        program.write_text(script)
        done = subprocess.run(
            [*_SHELLS[shell], str(program)],
            cwd=self.workspace / step.get("working-directory", "."),
            env=self._variables(env, files, action),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.output += f"## {step.get('name', script.splitlines()[0])}\n{done.stdout}"
        self.env.update(_assignments(files["GITHUB_ENV"].read_text()))
        self.path = [*reversed(files["GITHUB_PATH"].read_text().splitlines()), *self.path]
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        if done.returncode:
            raise StepFailed(f"exit code {done.returncode}")
        return _assignments(files["GITHUB_OUTPUT"].read_text())

    def _variables(self, env: Mapping[str, str], files: Mapping[str, Path], action: str) -> dict[str, str]:
        here = str(Path(sys.executable).parent)  # the programs of the tests; a job installs its own
        outside = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != here]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_"))}
        return {
            **inherited,
            "PATH": os.pathsep.join([*self.path, *outside]),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_ACTION_PATH": action,
            "RUNNER_TEMP": str(self.temp),
            **{name: str(file) for name, file in files.items()},
            **self.env,
            **env,
        }


def _assignments(text: str) -> dict[str, str]:
    """What a file such as GITHUB_OUTPUT holds: lines `NAME=VALUE`, and values of several lines between two marks."""
    found: dict[str, str] = {}
    rest = text
    while rest:
        if long := re.match(r"([^=\n]+)<<(\S+)\n(.*?)\n?^\2\n", rest, re.S | re.M):
            found[long[1]] = long[3]
            rest = rest[long.end() :]
        else:
            line, _, rest = rest.partition("\n")
            name, sign, value = line.partition("=")
            if not sign:
                raise StepFailed(f"this line is no assignment: {line}")
            found[name] = value
    return found
