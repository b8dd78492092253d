"""`buildfarm plan`: print the builds of a selection, their cells, and the skipped cells; or new releases of torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from builder.cli.options import ArchOption, JsonOption, MatrixOption, SelectOptions, architectures
from builder.cli.output import print_data, print_json
from builder.errors import Code, NothingSelectedError, UsageError
from builder.gate.amounts import counted
from builder.log import print_warning
from builder.matrix.axes import Torch
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import MATRIX, Selection
from builder.matrix.load import load_matrix, load_recipes, read_plan
from builder.matrix.plan import Plan, make_plan
from builder.publish.ci.jobs import Scope, jobs_json
from builder.publish.plan_text import architectures_hint, plan_text
from builder.recipes.inspection.metadata import other_versions

#: The keys of a skip.
_SKIP = ("torch", "cuda", "python", "platform", "extension", "code", "reason")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SelectOptions):
    """The options of `buildfarm plan`."""

    arch: ArchOption = None
    matrix: MatrixOption = MATRIX
    explain: Annotated[bool, typer.Option("--explain", help="Name the skipped cells of each reason.")] = False
    github: Annotated[
        Scope | None,
        typer.Option(
            "--github",
            help="Print the jobs for GitHub Actions as JSON: a matrix with at most 256 jobs. full: every build, one in"
            " each job if this is enough. newest: a job for the newest cell of each extension.",
        ),
    ] = None
    new_torch: Annotated[
        bool,
        typer.Option(
            "--new-torch",
            help="Print the torch releases newer than those of matrix.yaml, and what to do. Asks the package"
            " index for a release that this version of buildfarm does not know. Prints nothing without a new"
            " release.",
        ),
    ] = False
    as_json: JsonOption = False


def plan(options: PlanOptions) -> None:
    """Print the builds, the cells that each build serves, and why the other cells are skipped. Builds nothing.

    Examples:
        buildfarm plan --torch 2.11 --cuda 13.0
        buildfarm plan --explain
        buildfarm plan --json > plan.json
    """
    github, as_json = options.github, options.as_json
    if options.new_torch:
        if options.select != Selection() or options.arch or options.explain or github:
            raise UsageError(
                "takes no options besides --matrix and --json", Code.COMMAND_LINE_INVALID, where="--new-torch"
            )
        print_new_torches(options.matrix, as_json=as_json)
        return
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
    skips = _lines({key: str(getattr(skip, key)) for key in _SKIP} for skip in plan.skips)
    return f'{{"schema": 1,\n"builds": [{builds}],\n"skips": [{skips}]}}\n'


def _lines(items: Iterable[dict[str, Any]]) -> str:
    """Return the inside of a JSON list, one line for each item, so that `diff` shows which item changed."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    return ",".join("\n" + encode(item) for item in items)


def print_new_torches(matrix: Path, *, as_json: bool) -> None:
    """Print the releases newer than those of matrix.yaml, as JSON or as Markdown with a title; nothing without one.

    These are the newest of each known series, unless it gives no cell for the CUDA and Python of matrix.yaml, and a
    newer one of the index. Raises UsageError for a wrong matrix.yaml, MissingToolError if the index does not answer.
    """
    declared, compat = load_matrix(matrix), Compat.load()
    recipes = load_recipes(declared)
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for release in {torch.series: torch for torch in compat.torches if torch > declared.torch[-1]}.values():
        with suppress(NothingSelectedError):
            plan = make_plan(replace(declared, torch=(release,)), recipes, Selection(), compat)
            builds, cells = len(plan.builds), sum(len(build.serves) for build in plan.builds)
            found.append({"torch": str(release), "known": True, "builds": builds, "cells": cells})
            texts.append(
                f"matrix.yaml does not have torch {release}, which adds {counted(builds, 'build')} for"
                f" {counted(cells, 'cell')}. To build them, add {release.series} to the list `torch` in matrix.yaml."
            )
    if unknown := _unknown_to(compat):
        found.append({"torch": str(unknown), "known": False, "builds": None, "cells": None})
        texts.append(
            f"The package index has torch {unknown}. To build for it, run `buildfarm facts --torch {unknown}`, add"
            f" {unknown.series} to the list `torch` in matrix.yaml, and commit facts.yaml too."
        )
    if as_json:
        print_json({"releases": found})
    elif found:
        title = f"New torch {'release' if len(found) == 1 else 'releases'}: {and_list(one['torch'] for one in found)}"
        print_data("\n\n".join([title, *texts]) + "\n")


def _unknown_to(compat: Compat) -> Torch | None:
    """The newest release of the package index for Linux, if it is newer than every release that buildfarm knows."""
    from builder.wheels.upstream import torch_wheels  # noqa: PLC0415 - loads slowly

    with suppress(UsageError):  # there is none
        return torch_wheels(f"torch>{compat.torches[-1]}")[0]
    return None
