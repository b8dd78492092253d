"""`buildfarm plan`: print the builds of a selection, their cells, and the skipped cells, also as jobs of a workflow."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from builder.cli.options import SelectOptions, architectures, architectures_hint
from builder.errors import Code, UsageError
from builder.gate.amounts import counted, grouped
from builder.log import print_data, print_warning
from builder.matrix.axes import Arch, Cell, Platform
from builder.matrix.config import MATRIX
from builder.matrix.load import read_plan
from builder.matrix.plan import Plan, summarise_skips
from builder.option import flag, option
from builder.recipes.inspection.metadata import other_versions

#: GitHub starts at most this many jobs for one matrix.
MOST_JOBS = 256


#: Which jobs a workflow runs: every build, or one cell of each extension.
Scope = Literal["full", "newest"]


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
        {"name": str(build)}
        | {
            key: list(map(str, value)) if isinstance(value, tuple) else str(value)
            for key, value in vars(build).items()
            if value != ""  # no `project`
        }
        for build in plan.builds
    )
    skips = _lines(skip.to_json() for skip in plan.skips)
    return f'{{"schema": 1,\n"builds": [{builds}],\n"skips": [{skips}]}}\n'


def _lines(items: Iterable[dict[str, Any]]) -> str:
    """Return the inside of a JSON list, one line for each item, so that `diff` shows which item changed."""
    return ",".join("\n" + json.dumps(item, ensure_ascii=False) for item in items)


def plan_text(plan: Plan, *, explain: bool, hint: str = "") -> str:
    """The plan for a person: skipped cells are counted by reason, and with `explain` named too.

    `hint` is a line after the builds, such as that of `architectures_hint`.
    """
    served = {(build.extension, cell) for build in plan.builds for cell in build.serves}
    builds, cells, skips = len(plan.builds), len(served), len(plan.skips)
    lines = [
        f"{counted(builds, 'build')} {'serves' if builds == 1 else 'serve'} {counted(cells, 'cell')};"
        f" {counted(skips, 'cell')} {'is' if skips == 1 else 'are'} skipped."
    ]
    lines += [""] if plan.builds else []
    width = max((len(str(build)) for build in plan.builds), default=0)
    for build in plan.builds:
        lines.append(f"{build!s:{width}}  archs {' '.join(map(str, build.archs))}")
        is_in_name = len(build.serves) == 1 and str(build).endswith(f"-{build.serves[0]}")
        lines += [] if is_in_name else [f"  serves  {cells}" for cells in _by_torch(build.serves)]
    if hint:
        lines += ["", hint]
    if plan.skips:
        lines += ["", "skipped:"]
        for group in summarise_skips(plan):
            lines.append(f"  {len(group.cells):4}  {_reason(group.about, group.reason)}")
            lines += [f"        {cells}" for cells in _by_torch(group.cells)] if explain else []
        lines.append(f"  (number of cells and reason; {'`--json`' if explain else '`--explain`'} lists each cell)")
    return "\n".join(lines) + "\n"


def _by_torch(cells: Iterable[Cell]) -> Iterator[str]:
    """The cells, a text for each torch, CUDA and platform: `torch2.11.0-cu130-cp311, cp312`."""
    rows = grouped(((cell.torch, cell.cuda, cell.platform), cell) for cell in sorted(cells))
    for first, *others in rows.values():
        yield ", ".join([str(first), *(cell.python.tag for cell in others)])


def _reason(extension: str, reason: str) -> str:
    """The reason, with the extension if the reason is about one and does not begin with its name."""
    return f"{extension}: {reason}" if extension and not reason.startswith(f"{extension} ") else reason


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
    if scope == "full":
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
    every = ((build.extension, (cell, build.name_without_version)) for build in plan.builds for cell in build.serves)
    newest = {name: max(found) for name, found in grouped(every).items()}
    return [(folder, _select(name, [cell])) for name, (cell, folder) in newest.items()]


def _select(extension: str, cells: Sequence[Cell]) -> str:
    """The options that select these cells."""
    words = [f"--ext {extension}"]
    for axis in ("torch", "cuda", "python"):
        words += _values(f"--{axis}", [getattr(cell, axis) for cell in cells])
    return " ".join(words)


def _values(option: str, values: Iterable[object]) -> list[str]:
    return [f"{option} {value}" for value in dict.fromkeys(values)]
