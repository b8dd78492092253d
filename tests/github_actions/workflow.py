"""Runs the jobs of a workflow of a repository in the order of `needs`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.github_actions.actions import Actions
from tests.github_actions.expressions import NotEmulated, Unset, filled, holds, text_of
from tests.github_actions.job import Job

#: Keys of a workflow and of a job without an effect here.
LEFT_OUT = frozenset({"concurrency", "environment", "permissions", "runs-on", "timeout-minutes"})
_WORKFLOW = frozenset({"name", True, "defaults", "jobs"})
_JOB = frozenset({"name", "needs", "if", "strategy", "steps", "outputs", "uses", "with", "env"})


@dataclass(frozen=True)
class Ran:
    """A finished job: `success`, `failure` or `skipped`, its outputs, what its steps printed, and its summary."""

    result: str
    outputs: dict[str, str] = field(default_factory=dict)
    output: str = ""
    summary: str = ""


@dataclass
class WorkflowRun:
    """A run of a workflow. `jobs` has the finished jobs by their names, such as `wheels 0 / NAME / build`."""

    #: The workflow, in the repository.
    path: str
    #: For the jobs, the artifacts and the caches.
    folder: Path
    #: The actions, with the repository.
    actions: Actions
    #: The context `github`.
    github: Mapping[str, Any]
    #: Values for a start by hand; GitHub gives an empty value for each other declared input.
    inputs: Mapping[str, str] = field(default_factory=dict)
    #: Variables of all jobs on this machine.
    env: Mapping[str, str] = field(default_factory=dict)
    #: More variables, of the jobs with this id.
    env_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: See `Job`.
    programs: Path | None = None
    jobs: dict[str, Ran] = field(default_factory=dict)
    attempts: int = 0

    def run(self) -> str:
        """Run the workflow; return its result. A second run is "Re-run failed jobs", with the jobs that need them."""
        self.attempts += 1
        workflow = self._read(self.path)
        if self.github["event_name"] not in workflow[True]:
            raise NotEmulated(f"{self.path} does not start on {self.github['event_name']}")
        earlier, self.jobs = self.jobs, {}
        return self._run(workflow, "", self._inputs(workflow[True]), earlier)[0]

    def _inputs(self, events: Any) -> dict[str, str]:
        """The context `inputs` of a workflow with these values of `on`."""
        by_hand = events.get("workflow_dispatch") if isinstance(events, dict) else None
        declared = (by_hand or {}).get("inputs", {})
        if unknown := set(self.inputs) - set(declared if self.github["event_name"] == "workflow_dispatch" else {}):
            raise NotEmulated(f"the inputs {sorted(unknown)} of {self.github['event_name']}")
        return {name: self.inputs.get(name, value.get("default", "")) for name, value in declared.items()}

    def _read(self, path: str) -> dict[Any, Any]:
        workflow: dict[Any, Any] = yaml.safe_load((self.actions.repository / path).read_text())
        if unknown := set(workflow) - _WORKFLOW - LEFT_OUT:
            raise NotEmulated(f"{unknown} of a workflow")
        return workflow

    def _run(
        self, workflow: Mapping[Any, Any], prefix: str, inputs: Mapping[str, Any], earlier: Mapping[str, Ran]
    ) -> tuple[str, bool]:
        """The result of the jobs of a workflow, and whether one of them ran."""
        done: dict[str, dict[str, Any]] = {}
        ran: set[str] = set()
        for name, job in _in_order(workflow["jobs"]):
            if unknown := set(job) - _JOB - LEFT_OUT:
                raise NotEmulated(f"{unknown} of a job")
            needs = _list(job.get("needs", []))
            before = {} if ran & set(needs) else earlier
            contexts = {
                "github": self.github,
                "inputs": inputs,
                "needs": {need: done[need] for need in needs},
                "vars": Unset(),
            }
            shell = workflow.get("defaults", {}).get("run", {}).get("shell", "")
            done[name], again = self._job(name, job, prefix, contexts, before, shell)
            ran |= {name} if again else set()
        return _together([each["result"] for each in done.values()]), bool(ran)

    def _job(
        self,
        name: str,
        job: Mapping[str, Any],
        prefix: str,
        contexts: Mapping[str, Any],
        earlier: Mapping[str, Ran],
        shell: str,
    ) -> tuple[dict[str, Any], bool]:
        results = [need["result"] for need in contexts["needs"].values()]
        status = {
            "success": lambda: all(result == "success" for result in results),
            "failure": lambda: "failure" in results,
            "cancelled": lambda: False,
            "always": lambda: True,
        }
        if not holds(job.get("if", "success()"), contexts, status):
            self.jobs[prefix + name] = Ran("skipped")
            return {"result": "skipped", "outputs": {}}, False
        outputs: dict[str, str] = {}
        combined, again = [], False
        for index, matrix in enumerate(_combinations(job.get("strategy", {}), contexts)):
            every = {**contexts, "matrix": matrix, "strategy": {"job-index": index}}
            shown = prefix + text_of(job.get("name", name), every)
            if "uses" in job:
                inputs = {key: filled(value, every) for key, value in job.get("with", {}).items()}
                called = self._read(job["uses"].removeprefix("./"))
                result, part_ran = self._run(called, f"{shown} / ", inputs, earlier)
            elif shown in earlier and earlier[shown].result == "success":
                self.jobs[shown], part_ran = earlier[shown], False
                result = "success"
                outputs |= earlier[shown].outputs
            else:
                self.jobs[shown] = self._steps(name, job, every, shell)
                result, part_ran = self.jobs[shown].result, True
                outputs |= self.jobs[shown].outputs
            combined.append(result)
            again = again or part_ran
        return {"result": _together(combined), "outputs": outputs}, again

    def _steps(self, name: str, job: Mapping[str, Any], contexts: Mapping[str, Any], shell: str) -> Ran:
        folder = self.folder / f"attempt-{self.attempts}" / f"job-{len(self.jobs)}"
        of_job = {key: text_of(value, contexts) for key, value in job.get("env", {}).items()}
        env = {**of_job, **self.env, **self.env_of.get(name, {})}
        github = {**self.github, "job": name, "run_id": "17", "run_attempt": str(self.attempts)}
        running = Job(folder, self.actions, {**contexts, "github": github}, env, shell, self.programs)
        outputs = running.run(job["steps"], job.get("outputs", {}))
        return Ran("failure" if running.failed else "success", outputs, running.output, running.summary)


def _in_order(jobs: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The jobs, each after those that it needs."""
    left = dict(jobs)
    while left:
        ready = [name for name, job in left.items() if not set(_list(job.get("needs", []))) & set(left)]
        if not ready:
            raise NotEmulated(f"jobs that need each other: {sorted(left)}")
        for name in ready:
            yield name, left.pop(name)


def _combinations(strategy: Mapping[str, Any], contexts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The values of `matrix` of each job."""
    if not strategy:
        return [{}]
    if strategy.get("fail-fast") is not False or set(strategy) != {"fail-fast", "matrix"}:
        raise NotEmulated("a strategy with fail-fast or max-parallel")
    matrix = strategy["matrix"]
    matrix = filled(matrix, contexts) if isinstance(matrix, str) else matrix
    lists = {key: filled(value, contexts) if isinstance(value, str) else value for key, value in matrix.items()}
    if set(lists) == {"include"}:
        found = list(lists["include"])
    elif lists and not set(lists) & {"include", "exclude"}:
        found = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    else:
        raise NotEmulated(f"the matrix {json.dumps(matrix)}")
    if not 0 < len(found) <= 256:  # GitHub's limits
        raise NotEmulated(f"a matrix with {len(found)} jobs")
    return found


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _together(results: list[str]) -> str:
    return "failure" if "failure" in results else "skipped" if set(results) == {"skipped"} else "success"
