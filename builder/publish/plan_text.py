"""The plan as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from builder.matrix.plan import Build, Plan, summarise_skips


def plan_text(plan: Plan, *, explain: bool) -> str:
    """The plan for a person: each build with the cells it serves, then the skipped cells."""
    lines = [f"{len(plan.builds)} builds serve {_cells(plan.builds)} cells; {len(plan.skips)} cells are skipped."]
    for build in plan.builds:
        lines.append("")
        lines.append(f"{build}")
        lines.append(f"  archs   {' '.join(map(str, build.archs))}")
        lines += [f"  {'serves' if n == 0 else '':7} {cell}" for n, cell in enumerate(build.serves)]
    if plan.skips:
        lines += ["", "skipped:"]
        if explain:
            for skip in plan.skips:
                cell = f"torch{skip.torch}-{skip.cuda.variant}-{skip.python.tag}"
                lines.append(f"  {cell:26}  {_of(skip.extension)}{skip.reason}")
        else:
            for group in summarise_skips(plan):
                lines.append(f"  {group.count:4}  {_of(group.first.extension)}{group.reason}")
            lines.append("  (`--explain` lists each cell)")
    return "\n".join(lines) + "\n"


def _cells(builds: Sequence[Build]) -> int:
    return len({(build.extension, cell) for build in builds for cell in build.serves})


def _of(extension: str) -> str:
    return f"{extension}: " if extension else ""
