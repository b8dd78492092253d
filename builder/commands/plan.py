"""`buildfarm plan`: print the builds of a selection, their cells, and the skipped cells."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.cli.options import SelectOptions, architectures
from builder.cli.output import print_data
from builder.log import print_warning
from builder.matrix.config import MATRIX
from builder.matrix.load import read_plan
from builder.matrix.plan import Plan
from builder.option import flag, option
from builder.publish.ci.jobs import Scope, jobs_json
from builder.publish.plan_text import architectures_hint, plan_text
from builder.recipes.inspection.metadata import other_versions


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SelectOptions):
    """The options of `buildfarm plan`."""

    arch: list[str] | None = None
    matrix: Path = MATRIX
    explain: bool = flag("Name the skipped cells of each reason.")
    github: Scope | None = option(
        "Print the jobs for GitHub Actions as JSON: a matrix with at most 256 jobs. full: every build, one in"
        " each job if this is enough. newest: a job for the newest cell of each extension."
    )
    as_json: bool = False


def plan(options: PlanOptions) -> None:
    """Print the builds, the cells that each build serves, and why the other cells are skipped. Builds nothing.

    Examples:
        buildfarm plan --torch 2.11 --cuda 13.0
        buildfarm plan --explain
        buildfarm plan --json > plan.json
    """
    github, as_json = options.github, options.as_json
    archs = architectures(options.arch)
    _, recipes, planned = read_plan(options.matrix, options.select, archs)
    for problem in other_versions(recipes[name] for name in dict.fromkeys(one.extension for one in planned.builds)):
        print_warning(f"`buildfarm build` will fail: {problem}; {'; '.join(problem.hints)}")
    if github:
        print_data(jobs_json(planned, github, archs))
        return
    hint = "" if options.arch else architectures_hint(planned.builds)
    print_data(plan_to_json(planned) if as_json else plan_text(planned, explain=options.explain, hint=hint))


def plan_to_json(plan: Plan) -> str:
    """Return the plan as JSON text with a final newline, one line for each build and each skip."""
    builds = _lines(
        {
            "name": str(build),
            "extension": build.extension,
            **({"project": build.project} if build.project else {}),
            "version": build.version,
            "abi": str(build.abi),
            "torch": str(build.torch),
            "cuda": str(build.cuda),
            "pythons": [str(python) for python in build.pythons],
            "archs": [str(arch) for arch in build.archs],
            "platform": str(build.platform),
            "serves": [str(cell) for cell in build.serves],
        }
        for build in plan.builds
    )
    skips = _lines(skip.to_json() for skip in plan.skips)
    return f'{{"schema": 1,\n"builds": [{builds}],\n"skips": [{skips}]}}\n'


def _lines(items: Iterable[dict[str, Any]]) -> str:
    """Return the inside of a JSON list, one line for each item, so that `diff` shows which item changed."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    return ",".join("\n" + encode(item) for item in items)
