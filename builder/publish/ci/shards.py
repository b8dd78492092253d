"""The builds of a plan as jobs of GitHub Actions, in lists that fit into the matrix of a workflow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum

from builder.errors import Code, UsageError
from builder.matrix.axes import Arch, Cell, Platform
from builder.matrix.plan import Plan

#: GitHub starts at most this many jobs for one matrix.
SHARD = 256


class Scope(StrEnum):
    """Which jobs a workflow runs: every build, or one cell of each extension."""

    FULL = "full"
    NEWEST = "newest"


def shards_json(plan: Plan, scope: Scope, archs: Sequence[Arch] = ()) -> str:
    """The jobs as one line of JSON: a list of shards; each shard is the value of `strategy.matrix` of a workflow.

    A job has a `name`; `select`, the options of `build` and `smoke` that select its cells; and `archs`, the options of
    `build` that select GPU architectures.

    Raises UsageError for a platform that the workflow cannot build for.
    """
    if foreign := sorted({build.platform for build in plan.builds} - {Platform.LINUX_X86_64}):
        raise UsageError(
            f"the workflow can build for {Platform.LINUX_X86_64} only, and the plan has builds for {foreign[0]}",
            Code.PLATFORM_UNSUPPORTED,
            hints=[f"remove {foreign[0]} from `platforms` in matrix.yaml"],
        )
    jobs = _builds(plan) if scope is Scope.FULL else _newest_cells(plan)
    jobs = [{**job, "archs": " ".join(_values("--arch", archs))} for job in jobs]
    shards = [{"include": jobs[start : start + SHARD]} for start in range(0, len(jobs), SHARD)]
    return json.dumps(shards, separators=(",", ":")) + "\n"


def _builds(plan: Plan) -> list[dict[str, str]]:
    return [{"name": str(build), "select": _select(build.extension, build.serves)} for build in plan.builds]


def _newest_cells(plan: Plan) -> list[dict[str, str]]:
    """One job for each extension, with the newest torch, the newest CUDA of this torch, and the newest Python."""
    newest: dict[str, Cell] = {}
    for build in plan.builds:
        newest[build.extension] = max(
            [*build.serves, *([newest[build.extension]] if build.extension in newest else [])]
        )
    return [{"name": f"{name}-{cell}", "select": _select(name, [cell])} for name, cell in newest.items()]


def _select(extension: str, cells: Sequence[Cell]) -> str:
    """The options that select these cells."""
    return " ".join(
        [
            f"--ext {extension}",
            *_values("--torch", (cell.torch for cell in cells)),
            *_values("--cuda", (cell.cuda for cell in cells)),
            *_values("--python", (cell.python for cell in cells)),
        ]
    )


def _values(option: str, values: Iterable[object]) -> list[str]:
    return [f"{option} {value}" for value in dict.fromkeys(values)]
