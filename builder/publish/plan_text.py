"""The plan as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from builder.matrix.axes import Cell
from builder.matrix.plan import Build, Plan, summarise_skips


def plan_text(plan: Plan, *, explain: bool) -> str:
    """The plan for a person: each build with the cells it serves, then the skipped cells."""
    builds, cells, skips = len(plan.builds), _cells(plan.builds), len(plan.skips)
    lines = [
        f"{builds} build{'s serve' if builds != 1 else ' serves'} {cells} cell{'s' * (cells != 1)};"
        f" {skips} cell{'s are' if skips != 1 else ' is'} skipped."
    ]
    for build in plan.builds:
        lines.append("")
        lines.append(f"{build}")
        lines.append(f"  archs   {' '.join(map(str, build.archs))}")
        lines += [f"  {'serves' if n == 0 else '':7} {cell}" for n, cell in enumerate(build.serves)]
    if plan.skips:
        lines += ["", "skipped:"]
        if explain:
            for skip in plan.skips:
                cell = Cell(skip.torch, skip.cuda, skip.python, skip.platform)
                lines.append(f"  {cell!s:26}  {_of(skip.extension)}{skip.reason}")
        else:
            for group in summarise_skips(plan):
                lines.append(f"  {group.count:4}  {_of(group.first.extension)}{group.reason}")
            lines.append("  (`--explain` lists each cell)")
    return "\n".join(lines) + "\n"


def _cells(builds: Sequence[Build]) -> int:
    return len({(build.extension, cell) for build in builds for cell in build.serves})


def _of(extension: str) -> str:
    return f"{extension}: " if extension else ""
