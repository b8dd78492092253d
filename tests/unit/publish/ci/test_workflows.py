"""`buildfarm ci` and the actions of this repository: jobs, conditions, rights, scripts, how jobs install buildfarm."""

import json
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from packaging.requirements import Requirement
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.commands.ci import check_install
from builder.commands.plan import MOST_JOBS, Scope, jobs_json
from builder.errors import Code, UsageError
from builder.matrix.axes import Platform
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes, read_plan
from builder.matrix.plan import Plan, make_plan
from builder.publish.ci.workflows import ACTIONS, MAIN, REQUIREMENTS, WorkflowOptions, workflows
from tests.conftest import BUILDFARM, ROOT, git, lacking
from tests.refused import refused
from tests.unit.matrix.make import matrix, recipe
from tests.unit.publish.ci.steps import StepRun, program, run_step, step_named

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


@pytest.fixture
def jobs(project: Path) -> dict[str, Any]:
    """Every job of both workflows with the default options, by name."""
    return {name: job for workflow in written(project).values() for name, job in workflow["jobs"].items()}


def test_the_workflow_of_this_repository_is_what_the_command_writes() -> None:
    for path, text in workflows(WorkflowOptions(".")).items():
        assert (ROOT / path).read_text() == text, "run `buildfarm ci --install .`"


def test_a_part_of_a_wheel_and_what_nobody_reviewed_is_not_published(jobs: dict[str, Any]) -> None:
    condition = " ".join(jobs["publish"]["if"].split())
    parts = ["!cancelled()", "needs.plan.result == 'success'"]
    parts += [f"!contains(inputs.select, '{option}')" for option in ("--torch", "--cuda", "--arch")]
    parts += ["(github.event_name == 'schedule' || github.event_name == 'workflow_dispatch')"]
    parts += ["github.ref == 'refs/heads/main'"]
    assert condition == f"${{{{ {' && '.join(parts)} }}}}"


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("branch", ["main", "master"])
def test_a_branch_that_the_repository_lacks_is_named(project: Path, branch: str, committed: bool) -> None:
    for words in (["init", "-q", "-b", branch], ["add", "."], *[["commit", "-q", "-m", "first"]] * committed):
        git(project, *words)
    told = ci(project, "--install", "./buildfarm").output
    assert ("no branch main, so no push starts the workflow" in told) is (branch == "master")


def test_without_gpu_no_job_needs_a_runner_of_the_project(project: Path) -> None:
    first = ci(project, "--install", "./buildfarm")
    assert "smoke: a runner with a GPU and the labels self-hosted,linux,x64,gpu" in first.output
    assert "`--require cpu` writes a workflow that needs none" in first.output
    made = written(project, "--require", "cpu")
    assert "buildfarm-wheel" not in (project / ".github" / "workflows" / "buildfarm.yml").read_text()
    jobs = made["buildfarm"]["jobs"]
    assert {name: job["runs-on"] for name, job in jobs.items()} == dict.fromkeys(
        ("plan", "wheels", "result", "publish", "new-torch", "facts"), "ubuntu-24.04"
    )
    assert "buildfarm build" in step_named(jobs["wheels"]["steps"], "Build")["run"]
    assert "--require cpu " in step_named(jobs["publish"]["steps"], "Publish")["run"]
    for job in jobs.values():
        assert not [step for step in job["steps"] if "GPU" in step.get("name", "")]


@pytest.mark.parametrize(("wheels", "status"), [("success", 0), ("failure", 1), ("skipped", 1), ("cancelled", 1)])
def test_one_job_of_a_fixed_name_says_whether_all_builds_succeeded(
    jobs: dict[str, Any], wheels: str, status: int
) -> None:
    result = jobs["result"]
    assert (result["needs"], result["if"]) == (["plan", "wheels"], "${{ always() }}")
    (step,) = result["steps"]
    done = subprocess.run(["bash", "-c", step["run"]], env={"RESULTS": f"success,{wheels}"}, check=False)
    assert done.returncode == status


def test_the_files_of_the_user_are_kept(project: Path) -> None:
    folder = project / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "buildfarm-wheel.yml").write_text("# mine\non: push\n")
    error = ci(project, "--install", "./buildfarm").exception
    assert isinstance(error, UsageError)
    assert "does not overwrite" in str(error)
    assert (folder / "buildfarm-wheel.yml").read_text() == "# mine\non: push\n"


def test_the_jobs_install_locked_versions_with_hashes(project: Path) -> None:
    written(project)
    locked = dict(re.findall(r"^([\w.-]+)==([^ ]+) \\$", (project / REQUIREMENTS).read_text(), re.M))
    every = dict(re.findall(r"^([\w.-]+?)(?:\[.*\])?==([^ ]+)", (ROOT / "requirements.lock").read_text(), re.M))
    assert locked.items() <= every.items(), "run `nox -s lock`"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = declared["dependency-groups"]
    assert {
        Requirement(one).name for one in (*declared["project"]["dependencies"], *groups["build"])
    } <= locked.keys(), "run `nox -s lock`"
    assert groups["build"] == declared["build-system"]["requires"]
    for workflow in workflows(WorkflowOptions("./buildfarm")).values():
        installs = re.findall(r"pip\S* (?:install|wheel) .*", workflow)
        assert all(re.search(r"--require-hashes|--no-build-isolation|--no-index", line) for line in installs)


@pytest.mark.parametrize(("job", "name"), [("build", "Build"), ("smoke", "Smoke")])
def test_a_job_of_several_builds_goes_on_after_a_failed_one(project: Path, job: str, name: str) -> None:
    step = step_named(written(project)["buildfarm-wheel"]["jobs"][job]["steps"], name)
    lines = [f"--ext ops --python {python}" for python in ("3.12", "3.13", "3.14")]
    archs = {"ARCHS": "--arch 9.0"} if job == "build" else {}
    # It notes its options, and ends with an error for cp313.
    programs = program(project, "buildfarm", 'echo "$*" >> "$HOME/calls"\n[[ "$*" != *3.13* ]]\n')

    def ran(*select: str) -> StepRun:
        return run_step(step, project, programs, HOME=str(project), SELECT="\n".join(select), **archs)

    assert ran(*lines).code == 1
    calls = (project / "calls").read_text().splitlines()
    assert calls == [" ".join([job, "--summary", f"{project}/runner/summary", line, *archs.values()]) for line in lines]
    assert ran(lines[0]).code == 0


def test_a_wheel_that_is_refused_fails_the_step_that_publishes(project: Path, jobs: dict[str, Any]) -> None:
    steps = jobs["publish"]["steps"]
    programs = program(project, "buildfarm", 'echo "refused 1.0"\nexit 1\n')
    assert run_step(step_named(steps, "Publish"), project, programs).code == 1
    summary = step_named(steps, "Summary")
    assert summary["if"] == "${{ !cancelled() }}"
    assert "refused 1.0" in run_step(summary, project, programs).summary


def test_the_plan_becomes_a_line_of_the_outputs(project: Path) -> None:
    if not BUILDFARM.exists():
        lacking("the command buildfarm is not installed beside this Python")
    step = step_named(written(project)["buildfarm"]["jobs"]["plan"]["steps"], "Plan")
    ran = run_step(step, project, BUILDFARM.parent, SCOPE="full", SELECT="--python 3.12")
    name, _, value = ran.output.partition("=")
    assert (ran.code, name, ran.output.count("\n")) == (0, "jobs", 1), ran.printed
    assert [job["name"] for job in json.loads(value)["include"]] == ["ops-cpython-torch2.11.0-cu130-cp312"]
    assert "1 build serves 1 cell" in ran.summary
    (project / "matrix.yaml").write_text("cudo: [13.0]\n")
    wrong = run_step(step, project, BUILDFARM.parent, SCOPE="full", SELECT="")
    assert wrong.code != 0
    assert "cudo" in wrong.printed


@pytest.mark.parametrize("name", ["1.10", "2026", "on", "null", "0x10", "1e3", "-", "gpu"])
def test_names_that_yaml_reads_as_numbers_stay_names(name: str, project: Path) -> None:
    found = written(project, "--environment", name, "--publish-labels", name, "--runner-labels", f"{name},{name}")
    publish = found["buildfarm"]["jobs"]["publish"]
    assert (publish["environment"], publish["runs-on"]) == (name, name)
    assert found["buildfarm-wheel"]["jobs"]["smoke"]["runs-on"] == [name, name]


def test_every_action_of_this_repository_is_a_pinned_one() -> None:
    for path in (*WORKFLOWS.iterdir(), ACTION, VERIFY):
        used = re.findall(r"uses: ([^.\s].*)", path.read_text())
        assert used, path
        assert set(used) <= set(ACTIONS.values()), path
    pinned = re.compile(r"actions/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert all(map(pinned.fullmatch, ACTIONS.values()))


def test_a_cache_is_saved_from_the_paths_that_it_is_restored_to(jobs: dict[str, Any]) -> None:
    actions = [yaml.safe_load(path.read_text())["runs"]["steps"] for path in (ACTION, VERIFY)]
    for steps in [*actions, *(job.get("steps", []) for job in jobs.values())]:
        restored = [step["with"]["path"] for step in steps if "cache/restore" in step.get("uses", "")]
        saved = [step["with"]["path"] for step in steps if "cache/save" in step.get("uses", "")]
        assert restored == saved, "GitHub finds an entry by its key and its paths"


def test_a_fork_reaches_no_gpu_runner_and_no_environment(project: Path) -> None:
    made = written(project, "--runner-labels", "self-hosted,gpu")
    jobs = {name: job for workflow in made.values() for name, job in workflow["jobs"].items()}
    assert {name for name, job in jobs.items() if job.get("runs-on") != "ubuntu-24.04"} == {"smoke", "wheels"}
    assert jobs["smoke"]["runs-on"] == ["self-hosted", "gpu"]
    condition = " ".join(jobs["smoke"]["if"].split())
    safe = f"(github.event_name != 'pull_request' || {SAME_REPOSITORY})"
    assert condition == f"${{{{ github.event_name != 'push' && github.event_name != 'merge_group' && {safe} }}}}"
    assert {name for name, job in jobs.items() if "environment" in job} == {"publish"}
    assert [set(workflow[True]) for workflow in made.values() if "pull_request" in workflow[True]] == [
        {"pull_request", "merge_group", "push", "schedule", "workflow_dispatch"}
    ]
    assert made["buildfarm"][True]["push"] == {"branches": ["main"]}


def test_no_job_sees_a_secret_and_only_what_opens_an_issue_or_a_pull_request_can_write(project: Path) -> None:
    for workflow in written(project).values():
        rights = {"new-torch": {"contents": "read", "issues": "write"}}
        rights["facts"] = {"contents": "write", "pull-requests": "write"}
        for name in rights.keys() & workflow["jobs"].keys():
            job = workflow["jobs"].pop(name)
            assert job["permissions"] == rights[name]
            assert "needs.plan.outputs.facts" in job["if"], "which only a nightly run has"
            assert name == "new-torch" or "buildfarm-requirements" not in yaml.safe_dump(job), "it runs no package"
        assert workflow["permissions"] == {"contents": "read"}
        assert not any("permissions" in job for job in workflow["jobs"].values())
        assert "token" not in yaml.safe_dump(workflow["jobs"])
        assert "secrets" not in yaml.safe_dump(workflow)


def test_what_a_job_downloads_stays_out_of_the_checkout(project: Path) -> None:
    """An artifact may have any files, such as `.git/config`, and a later step runs git or pip there."""
    steps = [
        step for made in written(project).values() for job in made["jobs"].values() for step in job.get("steps", ())
    ]
    places = {step["with"].get("path", ".") for step in steps if "download-artifact" in step.get("uses", "")}
    assert {place.partition("}}/")[0] for place in places} == {"${{ runner.temp ", "dist"}


def test_the_options_of_runners_and_index(project: Path) -> None:
    labels = ("--runner-labels", "arc-gpu", "--publish-labels", "self-hosted,wheels")
    made = written(project, *labels, "--index", "/srv/wheels")
    assert made["buildfarm-wheel"]["jobs"]["smoke"]["runs-on"] == "arc-gpu", "one label is a name"
    publish = made["buildfarm"]["jobs"]["publish"]
    assert publish["runs-on"] == ["self-hosted", "wheels"]
    assert not [step for step in publish["steps"] if "upload-artifact" in step.get("uses", "")]
    written_by = "# Written by `buildfarm ci --install ./buildfarm --runner-labels arc-gpu --publish-labels"
    assert (project / ".github" / "workflows" / "buildfarm.yml").read_text().startswith(written_by)


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


SHIPPED = ROOT / "matrix.yaml"


def jobs_of(plan: Plan, scope: Scope) -> list[dict[str, str]]:
    jobs: list[dict[str, str]] = json.loads(jobs_json(plan, scope))["include"]
    return jobs


def selected(words: str) -> Selection:
    """What the options of a job select."""
    pairs = list(zip(*[iter(words.split())] * 2, strict=True))
    values = {option: tuple(value for name, value in pairs if name == option) for option, _ in pairs}
    return Selection(values["--torch"], values["--cuda"], values["--python"], values["--ext"])


def test_the_jobs_of_the_shipped_matrix_select_each_build_once() -> None:
    declared, recipes = load_matrix(SHIPPED), load_recipes(load_matrix(SHIPPED))
    compat = Compat.load()
    plan = make_plan(declared, recipes, Selection(), compat)
    jobs = jobs_of(plan, "full")
    assert len(plan.builds) > MOST_JOBS >= len(jobs), "GitHub starts no more"
    lines = [line for job in jobs for line in job["select"].splitlines()]
    for line, build in zip(lines, plan.builds, strict=True):
        assert make_plan(declared, recipes, selected(line), compat).builds == (build,)
    names = [job["name"] for scope in get_args(Scope) for job in jobs_of(plan, scope)]
    assert not {*"".join(names)} & set('":<>|*?\r\n\\/'), "they are names of artifacts"
    first, third = plan.builds[0].name_without_version, plan.builds[2].name_without_version
    assert [job["name"] for job in jobs][:2] == [f"{first}-and-1-more", f"{third}-and-1-more"]


def test_a_job_has_one_build_if_the_jobs_are_enough() -> None:
    _, _, plan = read_plan(SHIPPED, Selection(("2.11",)))
    assert [job["name"] for job in jobs_of(plan, "full")] == [build.name_without_version for build in plan.builds]


def test_the_newest_cell_of_each_extension() -> None:
    words = ["--torch", "2.9", "--torch", "2.11", "--python", "3.12", "--github", "newest"]
    done = CliRunner().invoke(app, ["plan", "--matrix", str(SHIPPED), *words])
    assert done.exit_code == 0, done.output
    jobs = json.loads(done.stdout)["include"]
    assert [job["name"] for job in jobs] == [
        "diffrast-stable-torch2.11.0-cu130-py3",
        "ms_deform_attn-stable-torch2.11.0-cu130-py3",
        "torch_scatter-cpython-torch2.11.0-cu130-cp312",
    ]
    assert jobs[0]["select"] == "--ext diffrast --torch 2.11.0 --cuda 13.0 --python 3.12"
    assert len(done.stdout.splitlines()) == 1, "a line of GITHUB_OUTPUT"


def test_a_run_finds_the_cache_of_another_scope_and_version() -> None:
    """The names of jobs are the keys of their caches."""
    declared = matrix(["2.11"], ["13.0"], ["3.12", "3.13"])
    recipes = [replace(recipe(), version=version) for version in ("1.0", "2.0")]
    plans = [make_plan(declared, [one], Selection(), Compat.load()) for one in recipes]
    keys = [[job["name"] for job in jobs_of(plan, scope)] for plan in plans for scope in get_args(Scope)]
    assert keys[0] == keys[2]
    assert keys[1] == keys[3] == keys[0][-1:]


def test_the_jobs_compile_for_the_architectures_of_the_plan() -> None:
    words = ["--ext", "diffrast", "--torch", "2.11", "--cuda", "13.0", "--arch", "9.0,12.0+PTX"]
    done = CliRunner().invoke(app, ["plan", "--matrix", str(SHIPPED), *words, "--github", "newest"])
    assert done.exit_code == 0, done.output
    (job,) = json.loads(done.stdout)["include"]
    assert job["select"] == "--ext diffrast --torch 2.11.0 --cuda 13.0 --python 3.14"
    assert job["archs"] == "--arch 9.0 --arch 12.0+PTX"


def test_other_platforms_are_refused() -> None:
    plan = make_plan(matrix(["2.11"], ["13.0"], ["3.12"]), [recipe()], Selection(), Compat.load())
    foreign = replace(plan.builds[0], platform=Platform.LINUX_AARCH64)
    with refused(Code.PLATFORM_UNSUPPORTED, "linux_aarch64"):
        jobs_json(Plan((*plan.builds, foreign), ()), "full")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "value",
    [
        "./buildfarm",
        "buildfarm/",
        "./buildfarm[s3]",
        "./buildfarm[cache, dask]",
        "./tools/buildfarm-1.0-py3-none-any.whl[s3]",
        f"git+https://git.example/buildfarm@{COMMIT}",
        f"git+https://git.example/buildfarm.git@{COMMIT}#subdirectory=tools",
        f"buildfarm[s3] @ git+https://git.example/buildfarm@{COMMIT}",
        f"buildfarm @ git+ssh://git@git.example/buildfarm@{COMMIT}",
        f"buildfarm @ https://git.example/buildfarm/archive/{COMMIT}.zip",
        f"https://git.example/buildfarm-1.0-py3-none-any.whl#sha256={COMMIT[:32] * 2}",
    ],
)
def test_paths_of_the_repository_and_urls_with_a_commit(project: Path, value: str) -> None:
    (project / "tools").mkdir()
    (project / "tools" / "buildfarm-1.0-py3-none-any.whl").write_bytes(b"")
    check_install(value, project)
    assert ci(project, "--install", value).exit_code == 0


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("true", ""),  # no repository
        ("git init -q . && git add buildfarm", ""),
        ("git init -q .", "git does not track buildfarm"),
        ("git init -q . && git init -q buildfarm", "buildfarm is a git repository of its own"),
        (
            f"git init -q . && git update-index --add --cacheinfo 160000,{COMMIT},buildfarm",
            "git -C CLONE archive --prefix=buildfarm/ HEAD | tar x",
        ),
    ],
)
def test_a_path_that_a_checkout_lacks_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], prepare: str, says: str
) -> None:
    subprocess.run(["/bin/sh", "-c", prepare], cwd=project, check=True)
    done = ci(project, "--install", "./buildfarm[s3]")
    assert done.exit_code == 0, done.exception
    told = done.output + capsys.readouterr().err
    assert says in told
    assert bool(says) == ("--install: " in told)


def test_the_repository_itself_is_what_jobs_may_install(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["/bin/sh", "-c", "mv buildfarm/* . && git init -q . && git add ."], cwd=project, check=True)
    done = ci(project, "--install", ".")
    assert done.exit_code == 0, done.exception
    assert "--install: " not in done.output + capsys.readouterr().err


def test_a_path_may_have_signs_that_yaml_reads(project: Path) -> None:
    (project / "buildfarm").rename(project / "a #b")
    assert ci(project, "--install", "./a #b").exit_code == 0
    plan = yaml.safe_load((project / MAIN).read_text())["jobs"]["plan"]
    assert "'./a #b'" in step_named(plan["steps"], "Install buildfarm")["run"]


@pytest.mark.parametrize(
    "value",
    [
        f"git+https://user:tok3n@git.example/buildfarm@{COMMIT}",
        f"buildfarm[s3] @ git+https://tok3n@git.example/buildfarm@{COMMIT}",
        f"git+ssh://git:tok3n@git.example/buildfarm@{COMMIT}",
        f"https://git.example/archive/{COMMIT}.zip?private_token=tok3n",
        "git+https://user:tok3n@git.example/buildfarm@main",
    ],
)
def test_a_secret_is_refused_and_is_in_no_message_and_no_file(project: Path, value: str) -> None:
    with refused(Code.VALUE_INVALID, "--install", "committed") as told:
        check_install(value, project)
    assert "tok3n" not in str(told.value)
    done = ci(project, "--install", value)
    assert "tok3n" not in f"{done.output}{done.exception}"
    assert not (project / ".github").exists()
