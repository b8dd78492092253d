"""What `plan` and `build --dry-run` print: builds with their GPU architectures; the skipped cells with reasons."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence

from builder.gate.amounts import counted
from builder.matrix.axes import Cell
from builder.matrix.plan import Build, Plan, summarise_skips


def plan_text(plan: Plan, *, explain: bool, hint: str = "") -> str:
    """The plan for a person; with `explain` each skipped cell has its own line, else they are counted by reason.

    `hint` is a line after the builds, such as that of `architectures_hint`.
    """
    builds, cells, skips = len(plan.builds), _cells(plan.builds), len(plan.skips)
    lines = [
        f"{counted(builds, 'build')} {'serves' if builds == 1 else 'serve'} {counted(cells, 'cell')};"
        f" {counted(skips, 'cell')} {'is' if skips == 1 else 'are'} skipped."
    ]
    for build in plan.builds:
        lines.append("")
        lines.append(f"{build}")
        lines.append(f"  archs   {' '.join(map(str, build.archs))}")
        lines += [f"  {'serves' if n == 0 else '':7} {cell}" for n, cell in enumerate(build.serves)]
    if hint:
        lines += ["", hint]
    if plan.skips:
        lines += ["", "skipped:"]
        if explain:
            for skip in plan.skips:
                cell = Cell(skip.torch, skip.cuda, skip.python, skip.platform)
                lines.append(f"  {cell!s:26}  {_reason(skip.extension, skip.reason)}")
        else:
            for group in summarise_skips(plan):
                lines.append(f"  {group.cells:4}  {_reason(group.about, group.reason)}")
            lines.append("  (number of cells and reason; `--explain` lists each cell)")
    return "\n".join(lines) + "\n"


def architectures_hint(builds: Collection[Build]) -> str:
    """The number of GPU architectures and how to compile for fewer; empty if each build is for one."""
    counts = {len(build.archs) for build in builds}
    if max(counts, default=1) == 1:
        return ""
    number = f"{'up to ' if len(counts) > 1 else ''}{max(counts)} GPU architectures"
    unread = " TORCH_CUDA_ARCH_LIST is not read." if "TORCH_CUDA_ARCH_LIST" in os.environ else ""
    return (
        f"Each wheel is compiled for {number}. To save time, add `--arch 9.0`, or `--arch native` for your own"
        f" GPU.{unread}"
    )


def dry_run_text(builds: Mapping[Build, bool], hint: str = "") -> str:
    """What a run would compile; the value of each build says whether the store has its wheel."""
    stored, width = sum(builds.values()), max((len(str(build)) for build in builds), default=0)
    lines = [f"{len(builds) - stored} to compile, {stored} already built"]
    for build, there in builds.items():
        archs = " ".join(map(str, build.archs))
        lines.append(f"  already built  {build}" if there else f"  compile        {build!s:{width}}  archs {archs}")
    return "\n".join([*lines, *([hint] if hint else [])]) + "\n"


def dry_run_json(builds: Mapping[Build, bool]) -> str:
    """What a run would compile, as JSON."""
    data = [
        {
            "build": str(build),
            "status": "already built" if there else "compile",
            "archs": [str(arch) for arch in build.archs],
        }
        for build, there in builds.items()
    ]
    return json.dumps({"builds": data}, indent=1) + "\n"


def _cells(builds: Sequence[Build]) -> int:
    return len({(build.extension, cell) for build in builds for cell in build.serves})


def _reason(extension: str, reason: str) -> str:
    """The reason, with the extension if the reason is about one and does not begin with its name."""
    return f"{extension}: {reason}" if extension and not reason.startswith(f"{extension} ") else reason
