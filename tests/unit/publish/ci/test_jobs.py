"""`plan --github`: the jobs of a plan, and that the options of each job select its build and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import Code
from builder.matrix.axes import Platform
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes, read_plan
from builder.matrix.plan import Plan, make_plan
from builder.publish.ci.jobs import MOST_JOBS, Scope, jobs_json
from tests.conftest import ROOT
from tests.refused import refused
from tests.unit.matrix.make import matrix, recipe

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
    jobs = jobs_of(plan, Scope.FULL)
    assert len(plan.builds) > MOST_JOBS >= len(jobs), "GitHub starts no more"
    lines = [line for job in jobs for line in job["select"].splitlines()]
    for line, build in zip(lines, plan.builds, strict=True):
        assert make_plan(declared, recipes, selected(line), compat).builds == (build,)
    names = [job["name"] for scope in Scope for job in jobs_of(plan, scope)]
    assert not {*"".join(names)} & set('":<>|*?\r\n\\/'), "they are names of artifacts"
    first, third = plan.builds[0].name_without_version, plan.builds[2].name_without_version
    assert [job["name"] for job in jobs][:2] == [f"{first}-and-1-more", f"{third}-and-1-more"]


def test_a_job_has_one_build_if_the_jobs_are_enough() -> None:
    _, _, plan = read_plan(SHIPPED, Selection(("2.11",)))
    assert [job["name"] for job in jobs_of(plan, Scope.FULL)] == [build.name_without_version for build in plan.builds]


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
    keys = [[job["name"] for job in jobs_of(plan, scope)] for plan in plans for scope in Scope]
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
        jobs_json(Plan((*plan.builds, foreign), ()), Scope.FULL)
