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
from builder.publish.ci.shards import Scope, shards_json
from tests.conftest import ROOT
from tests.refused import refused
from tests.unit.matrix.make import matrix, recipe

SHIPPED = ROOT / "matrix.yaml"


def jobs_of(plan: Plan, scope: Scope) -> list[list[dict[str, str]]]:
    return [shard["include"] for shard in json.loads(shards_json(plan, scope))]


def selected(words: str) -> Selection:
    """What the options of a job select."""
    pairs = list(zip(*[iter(words.split())] * 2, strict=True))
    values = {option: tuple(value for name, value in pairs if name == option) for option, _ in pairs}
    return Selection(values["--torch"], values["--cuda"], values["--python"], values["--ext"])


def test_each_job_of_the_shipped_matrix_selects_its_build() -> None:
    declared, recipes = load_matrix(SHIPPED), load_recipes(load_matrix(SHIPPED))
    compat = Compat.load()
    plan = make_plan(declared, recipes, Selection(), compat)
    jobs = [job for shard in jobs_of(plan, Scope.FULL) for job in shard]
    assert [job["name"] for job in jobs] == [str(build) for build in plan.builds]
    for job, build in zip(jobs, plan.builds, strict=True):
        assert make_plan(declared, recipes, selected(job["select"]), compat).builds == (build,)


def test_a_shard_has_at_most_256_jobs() -> None:
    _, _, plan = read_plan(SHIPPED, Selection())
    assert len(plan.builds) > 256
    assert [len(shard) for shard in jobs_of(plan, Scope.FULL)] == [256, len(plan.builds) - 256]


def test_the_newest_cell_of_each_extension() -> None:
    done = CliRunner().invoke(
        app,
        [
            "plan",
            "--matrix",
            str(SHIPPED),
            "--torch",
            "2.9",
            "--torch",
            "2.11",
            "--python",
            "3.12",
            "--github",
            "newest",
        ],
    )
    assert done.exit_code == 0, done.output
    (shard,) = json.loads(done.stdout)
    assert [job["name"] for job in shard["include"]] == [
        f"{name}-torch2.11.0-cu130-cp312" for name in ("diffrast", "ms_deform_attn", "torch_scatter")
    ]
    assert shard["include"][0]["select"] == "--ext diffrast --torch 2.11.0 --cuda 13.0 --python 3.12"
    assert len(done.stdout.splitlines()) == 1, "a line of GITHUB_OUTPUT"


def test_the_jobs_compile_for_the_architectures_of_the_plan() -> None:
    words = ["--ext", "diffrast", "--torch", "2.11", "--cuda", "13.0", "--arch", "9.0,12.0+PTX"]
    done = CliRunner().invoke(app, ["plan", "--matrix", str(SHIPPED), *words, "--github", "newest"])
    assert done.exit_code == 0, done.output
    (shard,) = json.loads(done.stdout)
    (job,) = shard["include"]
    assert job["select"] == "--ext diffrast --torch 2.11.0 --cuda 13.0 --python 3.14"
    assert job["archs"] == "--arch 9.0 --arch 12.0+PTX"


def test_names_of_jobs_are_names_of_artifacts() -> None:
    _, _, plan = read_plan(SHIPPED, Selection())
    names = [job["name"] for scope in Scope for shard in jobs_of(plan, scope) for job in shard]
    assert not {sign for name in names for sign in name} & set('":<>|*?\r\n\\/')


def test_other_platforms_are_refused() -> None:
    plan = make_plan(matrix(["2.11"], ["13.0"], ["3.12"]), [recipe()], Selection(), Compat.load())
    foreign = replace(plan.builds[0], platform=Platform.LINUX_AARCH64)
    with refused(Code.PLATFORM_UNSUPPORTED, "linux_aarch64"):
        shards_json(Plan((*plan.builds, foreign), ()), Scope.FULL)
