"""What `plan` prints: builds with their GPU architectures; the skipped cells with reasons."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from builder.gate.amounts import counted
from builder.matrix.axes import Cell, Cuda, Platform, Torch
from builder.matrix.plan import Build, Plan, summarise_skips


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
    rows: dict[tuple[Torch, Cuda, Platform], list[Cell]] = defaultdict(list)
    for cell in sorted(cells):
        rows[cell.torch, cell.cuda, cell.platform].append(cell)
    for first, *others in rows.values():
        yield ", ".join([str(first), *(cell.python.tag for cell in others)])


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


def _reason(extension: str, reason: str) -> str:
    """The reason, with the extension if the reason is about one and does not begin with its name."""
    return f"{extension}: {reason}" if extension and not reason.startswith(f"{extension} ") else reason
