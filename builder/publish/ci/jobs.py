"""The builds of a plan as jobs of GitHub Actions, in a list that fits into the matrix of a workflow."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum

from builder.errors import Code, UsageError
from builder.matrix.axes import Arch, Cell, Platform
from builder.matrix.plan import Plan

#: GitHub starts at most this many jobs for one matrix.
MOST_JOBS = 256


class Scope(StrEnum):
    """Which jobs a workflow runs: every build, or one cell of each extension."""

    FULL = "full"
    NEWEST = "newest"


def jobs_json(plan: Plan, scope: Scope, archs: Sequence[Arch] = ()) -> str:
    """The value of `strategy.matrix` of a workflow, as one line of JSON.

    A job has a `name`; `select`, with a line for each build: the options of `build` and `smoke` that select its cells;
    and `archs`, the options of `build` that select GPU architectures. It has one build, or more if there are more
    builds than GitHub starts jobs.

    Raises UsageError for a platform that the workflow cannot build for.
    """
    if foreign := sorted({build.platform for build in plan.builds} - {Platform.LINUX_X86_64}):
        sentence = f"the workflow can build for {Platform.LINUX_X86_64} only, and the plan has builds for {foreign[0]}"
        hint = f"remove {foreign[0]} from `platforms` in matrix.yaml"
        raise UsageError(sentence, Code.PLATFORM_UNSUPPORTED, hints=[hint])
    builds = _newest_cells(plan)
    if scope is Scope.FULL:
        builds = [(build.name_without_version, _select(build.extension, build.serves)) for build in plan.builds]
    size = max(1, -(-len(builds) // MOST_JOBS))
    groups = [builds[start : start + size] for start in range(0, len(builds), size)]
    words = " ".join(_values("--arch", archs))
    jobs = [
        {"name": _name(group), "select": "\n".join(select for _, select in group), "archs": words} for group in groups
    ]
    return json.dumps({"include": jobs}, separators=(",", ":")) + "\n"


def _name(group: Sequence[tuple[str, str]]) -> str:
    """The name of a job, a part of the names of its artifacts, and the key of its cache.

    It is the same for each scope and version, so that a run finds what another one compiled.
    """
    first, more = group[0][0], len(group) - 1
    return f"{first}-and-{more}-more" if more else first


def _newest_cells(plan: Plan) -> list[tuple[str, str]]:
    """The cell of each extension with the newest torch, the newest CUDA of this torch, and the newest Python."""
    newest: dict[str, tuple[Cell, str]] = {}
    for build in plan.builds:
        found = [(cell, build.name_without_version) for cell in build.serves]
        newest[build.extension] = max([*found, *filter(None, [newest.get(build.extension)])])
    return [(folder, _select(name, [cell])) for name, (cell, folder) in newest.items()]


def _select(extension: str, cells: Sequence[Cell]) -> str:
    """The options that select these cells."""
    words = [f"--ext {extension}"]
    for axis in ("torch", "cuda", "python"):
        words += _values(f"--{axis}", [getattr(cell, axis) for cell in cells])
    return " ".join(words)


def _values(option: str, values: Iterable[object]) -> list[str]:
    return [f"{option} {value}" for value in dict.fromkeys(values)]
