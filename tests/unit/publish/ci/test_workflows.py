"""`buildfarm ci`: the jobs, their conditions and their rights. Linters of workflows read them in tests/real."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import UsageError
from builder.publish.ci.workflows import ACTIONS, WorkflowOptions, workflows
from tests.conftest import ROOT
from tests.github_actions.expressions import holds

WORKFLOWS = ROOT / ".github" / "workflows"
ACTION = ROOT / "action.yml"
VERIFY = ROOT / ".github" / "actions" / "verify" / "action.yml"
SAME_REPOSITORY = "github.event.pull_request.head.repo.full_name == github.repository"


def ci(project: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["ci", "--dir", str(project), *arguments])


def written(project: Path, *arguments: str) -> dict[str, dict[Any, Any]]:
    """The workflows that the command writes, by name."""
    done = ci(project, "--install", "./buildfarm", *arguments)
    assert done.exit_code == 0, done.output
    folder = project / ".github" / "workflows"
    return {path.stem: yaml.safe_load(path.read_text()) for path in folder.iterdir()}


def test_the_workflow_of_this_repository_is_what_the_command_writes() -> None:
    for path, text in workflows(WorkflowOptions(".[cache]")).items():
        assert (ROOT / path).read_text() == text, "run `buildfarm ci --install '.[cache]'`"


@pytest.mark.parametrize(
    ("select", "published"),
    [
        (None, True),
        ("", True),
        ("--ext ops --python 3.12", True),
        ("--ext ops --arch 9.0", False),
        ("--torch=2.11", False),
        ("--ext ops --cuda 13.0", False),
    ],
)
def test_a_part_of_a_wheel_is_not_published(select: str | None, published: bool, project: Path) -> None:
    condition = written(project)["buildfarm"]["jobs"]["publish"]["if"]
    contexts = {
        "github": {"event_name": "workflow_dispatch"},
        "needs": {"plan": {"result": "success"}},
        "inputs": {"select": select},
    }
    assert holds(condition, contexts, {"cancelled": lambda: False}) is published


@pytest.mark.parametrize("name", ["1.10", "2026", "on", "null", "0x10", "1e3", "-", "gpu"])
def test_names_that_yaml_reads_as_numbers_stay_names(name: str, project: Path) -> None:
    found = written(project, "--environment", name, "--publish-labels", name, "--runner-labels", f"{name},{name}")
    publish = found["buildfarm"]["jobs"]["publish"]
    assert (publish["environment"], publish["runs-on"]) == (name, name)
    assert found["buildfarm-wheel"]["jobs"]["smoke"]["runs-on"] == [name, name]


def test_every_action_of_this_repository_is_a_pinned_one() -> None:
    for path in (*WORKFLOWS.iterdir(), ACTION, VERIFY):
        used = re.findall(r"uses: ([^.\s].*)", path.read_text())
        assert used or path.name == "buildfarm-shard.yml", path
        assert set(used) <= set(ACTIONS.values()), path
    pinned = re.compile(r"actions/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert all(map(pinned.fullmatch, ACTIONS.values()))


def test_a_cache_is_saved_from_the_paths_that_it_is_restored_to(project: Path) -> None:
    jobs = written(project)["buildfarm-wheel"]["jobs"].values()
    for steps in [
        *(job["steps"] for job in jobs),
        *(yaml.safe_load(p.read_text())["runs"]["steps"] for p in (ACTION, VERIFY)),
    ]:
        restored = [step["with"]["path"] for step in steps if "cache/restore" in step.get("uses", "")]
        saved = [step["with"]["path"] for step in steps if "cache/save" in step.get("uses", "")]
        assert restored == saved, "GitHub finds an entry by its key and its paths"


def test_a_fork_reaches_no_gpu_runner_and_no_environment(project: Path) -> None:
    made = written(project, "--runner-labels", "self-hosted,gpu")
    jobs = {name: job for workflow in made.values() for name, job in workflow["jobs"].items()}
    assert {name for name, job in jobs.items() if job.get("runs-on") != "ubuntu-latest"} == {"smoke", "wheels", "wheel"}
    assert jobs["smoke"]["runs-on"] == ["self-hosted", "gpu"]
    condition = " ".join(jobs["smoke"]["if"].split())
    assert condition == f"${{{{ github.event_name != 'pull_request' || {SAME_REPOSITORY} }}}}"
    assert {name for name, job in jobs.items() if "environment" in job} == {"publish"}
    assert "github.event_name != 'pull_request'" in jobs["publish"]["if"].split(" && ")[-1]
    assert [set(workflow[True]) for workflow in made.values() if "pull_request" in workflow[True]] == [
        {"pull_request", "schedule", "workflow_dispatch"}
    ]


def test_no_job_sees_a_secret_and_only_the_job_that_opens_issues_can_write(project: Path) -> None:
    made = written(project)
    torch = made.pop("buildfarm-torch")
    for workflow in made.values():
        assert workflow["permissions"] == {"contents": "read"}
        assert not any("permissions" in job for job in workflow["jobs"].values())
        assert "token" not in yaml.safe_dump(workflow["jobs"])
    assert not any("secrets" in yaml.safe_dump(workflow) for workflow in (*made.values(), torch))
    assert torch["permissions"] == {}
    assert torch["jobs"]["torch"]["permissions"] == {"contents": "read", "issues": "write"}
    assert set(torch[True]) == {"schedule", "workflow_dispatch"}


def test_each_job_needs_the_one_before(project: Path) -> None:
    made = written(project)
    jobs, shard, wheel = (made[name]["jobs"] for name in ("buildfarm", "buildfarm-shard", "buildfarm-wheel"))
    assert (jobs["wheels"]["needs"], jobs["publish"]["needs"], wheel["smoke"]["needs"]) == (
        "plan",
        ["plan", "wheels"],
        "build",
    )
    assert jobs["wheels"]["uses"] == "./.github/workflows/buildfarm-shard.yml"
    assert jobs["wheels"]["strategy"]["matrix"] == {"shard": "${{ fromJSON(needs.plan.outputs.shards) }}"}
    assert shard["wheel"]["uses"] == "./.github/workflows/buildfarm-wheel.yml"
    assert shard["wheel"]["strategy"] == {"fail-fast": False, "matrix": "${{ fromJSON(inputs.jobs) }}"}
    assert set(shard["wheel"]["with"]) == set(made["buildfarm-wheel"][True]["workflow_call"]["inputs"])
    uploads = [step["with"]["path"] for step in wheel["smoke"]["steps"] if "upload" in step.get("uses", "")]
    assert uploads == ["dist/*.whl.proofs.json"], "no wheel comes from a GPU machine"


def test_a_failed_build_fails_in_one_step(project: Path) -> None:
    steps = {step.get("name"): step for step in written(project)["buildfarm-wheel"]["jobs"]["build"]["steps"]}
    assert "if" not in steps["Upload the wheels with their proofs"], "there is no wheel"
    assert steps["Save the wheels and proofs for later runs"]["if"] == "${{ !cancelled() }}"


def test_a_gpu_machine_that_keeps_its_store_frees_it(project: Path) -> None:
    jobs = written(project)["buildfarm-wheel"]["jobs"]
    for job in (jobs["build"], jobs["smoke"]):
        (step,) = [step for step in job["steps"] if "store prune" in step.get("run", "")]
        assert step["if"] == "${{ !cancelled() }}", "also after a failed check"


def test_a_step_that_takes_too_long_fails_before_its_job_is_cancelled(project: Path) -> None:
    jobs = written(project)["buildfarm-wheel"]["jobs"]
    for name, step in (("build", "Build"), ("smoke", "Smoke")):
        (limit,) = [each.get("timeout-minutes", 360) for each in jobs[name]["steps"] if each.get("name") == step]
        assert limit < jobs[name]["timeout-minutes"], "the steps after it run, and save and free the store"


def test_artifacts_between_jobs_are_kept_for_a_week(project: Path) -> None:
    made = written(project)
    jobs = {name: job for workflow in made.values() for name, job in workflow["jobs"].items()}
    steps = [step for job in jobs.values() for step in job.get("steps", [])]
    uploads = {step["with"]["name"]: step["with"] for step in steps if "upload-artifact" in step.get("uses", "")}
    kept = {name.partition("-")[0]: given.get("retention-days") for name, given in uploads.items()}
    days = "${{ vars.BUILDFARM_RETENTION_DAYS || 7 }}"
    assert kept == {"buildfarm": days, "wheels": days, "proofs": days, "index": None}, "the index is the result"


def test_a_newer_run_cancels_only_an_older_one_of_a_pull_request(project: Path) -> None:
    for name, workflow in written(project).items():
        cancels = workflow.get("concurrency", {}).get("cancel-in-progress", False)
        assert cancels == ("${{ github.event_name == 'pull_request' }}" if name == "buildfarm" else False)


def test_a_single_label_is_a_name(project: Path) -> None:
    assert written(project, "--runner-labels", "arc-gpu")["buildfarm-wheel"]["jobs"]["smoke"]["runs-on"] == "arc-gpu"


def test_an_index_with_an_absolute_path_is_no_artifact(project: Path) -> None:
    made = written(project, "--index", "/srv/wheels", "--publish-labels", "self-hosted,wheels")["buildfarm"]
    publish = made["jobs"]["publish"]
    assert publish["runs-on"] == ["self-hosted", "wheels"]
    assert not [step for step in publish["steps"] if "upload-artifact" in step.get("uses", "")]


def test_the_first_line_is_the_command_that_wrote_the_file(project: Path) -> None:
    written(project, "--runner-labels", "arc-gpu")
    first = (project / ".github" / "workflows" / "buildfarm.yml").read_text().splitlines()[0]
    assert first.startswith("# Written by `buildfarm ci --install ./buildfarm --runner-labels arc-gpu`.")


def test_files_of_the_user_are_kept(project: Path) -> None:
    written(project)
    written(project, "--environment", "release")
    path = project / ".github" / "workflows" / "buildfarm-shard.yml"
    path.write_text("on: push\n")
    error = ci(project, "--install", "./buildfarm").exception
    assert isinstance(error, UsageError)
    assert "does not overwrite" in str(error)
    assert path.read_text() == "on: push\n"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--runner-labels", "a, b"),
        ("--runner-labels", "${{ github.head_ref }}"),
        ("--publish-labels", ""),
        ("--index", "a b"),
        ("--index", "-x"),
        ("--environment", "a: b"),
        ("--require", "all"),
        ("--install", "x\n      - run: evil"),
        ("--install", "$(evil)"),
    ],
)
def test_values_that_would_break_the_file_are_refused(project: Path, option: str, value: str) -> None:
    arguments = [option, value] if option == "--install" else ["--install", "./buildfarm", option, value]
    error = ci(project, *arguments).exception
    assert isinstance(error, UsageError)
    assert option in str(error)
    assert not (project / ".github").exists()
