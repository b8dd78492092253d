"""What `build` prints at the end: a table of the wheels, reasons, and the commands that install them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from builder.errors import BuildfarmError
from builder.gate.system.sizes import size_text
from builder.matrix.axes import Cell
from builder.matrix.config import TORCH_INDEX
from builder.matrix.plan import Plan
from builder.proof import Check, Proof, Verdict
from builder.publish.index.install import commands_of_cells, install_lines
from builder.publish.proof_lines import (
    accepted_lines,
    beyond_plan_line,
    counts,
    failed_lines,
    gpu_lines,
    not_run_lines,
    problem_of,
    remark_lines,
)
from builder.publish.provenance import SUFFIX
from builder.publish.terminal import fits, to_text
from builder.result import BuildResult


@dataclass(frozen=True)
class _Row:
    """One build as the table shows it; `name` and `checks` may contain rich markup."""

    name: str
    size: str
    cells: str
    checks: str
    gpu: str
    time: str


def build_text(dist: Path, plan: Plan, results: Sequence[BuildResult], torch_index: str = TORCH_INDEX) -> str:
    """The table, why checks failed or did not run, and the commands that install the wheels.

    `torch_index` is the index of torch's CUDA variants, as in matrix.yaml. The text is empty when no build made a
    wheel: the errors were printed before.
    """
    if not any(result.stored for result in results):
        return ""
    parts = _table([_row(result) for result in results])
    if notes := [note for result in results for note in _notes(result)]:
        parts += ["", *map(_marked, dict.fromkeys(notes))]
    if commands := _install_commands(dist, results, torch_index):
        parts += [
            "",
            *map(escape, install_lines(_cells(results), commands)),
            f"The provenance of each wheel (SLSA, unsigned) is next to the wheel, in NAME.whl{SUFFIX}",
        ]
    if plan.skips:
        cells = "1 cell is skipped" if len(plan.skips) == 1 else f"{len(plan.skips)} cells are skipped"
        parts += ["", f"{cells}; `buildfarm plan` with the same selection gives the reasons."]
    return to_text(*parts)


def distinct_errors(results: Sequence[BuildResult]) -> list[tuple[BuildfarmError, list[str]]]:
    """The distinct errors of a run, each with the names of the builds that it stopped."""
    builds: dict[str, tuple[BuildfarmError, list[str]]] = {}
    for result in results:
        if result.error:
            builds.setdefault(str(result.error), (result.error, []))[1].append(str(result.build))
    return list(builds.values())


def _table(rows: Sequence[_Row]) -> list[Table | str]:
    """A table; in a narrow terminal instead two lines for each build, since wheel names are long."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("wheel", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("cells", justify="right", no_wrap=True)
    table.add_column("checks", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, row.size, row.cells, row.checks, row.gpu, row.time)
    if fits(table):
        return [table]
    lines: list[Table | str] = []
    for row in rows:
        cells = f"{row.cells} cell{'s' * (row.cells != '1')}"
        lines += [row.name, f"  {row.size}, {cells}; checks: {row.checks}; GPU: {row.gpu}; {row.time}"]
    return lines


def _row(result: BuildResult) -> _Row:
    cells = str(len(result.build.serves))
    seconds = "reused" if result.reused else f"{result.seconds:.0f} s"
    if result.stored is None:
        return _Row(f"[red]{escape(str(result.build))}[/] (failed)", "-", cells, "-", "-", seconds)
    name = escape(result.stored.wheel.name)
    checks = re.sub(r"[1-9]\d* failed", r"[red]\g<0>[/]", counts(result.proofs))
    checks = re.sub(r"\d+ remarks?", r"[yellow]\g<0>[/]", checks)
    return _Row(
        f"[red]{name}[/] ({_refusal(result)})" if result.exit else name,
        size_text(result.stored.wheel.stat().st_size),
        cells,
        checks,
        _gpu(result.proofs),
        seconds,
    )


def _gpu(proofs: Sequence[Proof]) -> str:
    """In how many cells the values on a GPU were checked."""
    verdicts = Counter(proof.verdict for proof in proofs if proof.check is Check.GPU_VALUES)
    if verdicts[Verdict.FAILED]:
        return "failed"
    if not verdicts[Verdict.PASSED]:
        return "accepted" if verdicts[Verdict.ACCEPTED] else "not run"
    all_passed = verdicts[Verdict.PASSED] == verdicts.total()
    return "passed" if all_passed else f"{verdicts[Verdict.PASSED]} of {verdicts.total()}"


def _notes(result: BuildResult) -> list[str]:
    """Why the wheel was refused, which checks did not run, and what is special about its compile."""
    lines = [f"{_refusal(result)}: {result.build}: {line}" for line in failed_lines(result.proofs)]
    if result.refused and (problem := problem_of(result)):
        lines += [f"  hint: {hint}" for hint in problem.hints]
    lines += [f"remark: {result.build}: {line}" for line in remark_lines(result.proofs)]
    lines += [f"accepted: {result.build}: {line}" for line in accepted_lines(result.proofs)]
    lines += [f"{result.build}: {line}" for line in gpu_lines(result.proofs)] + not_run_lines(result.proofs)
    if result.toolchain and (wanted := result.toolchain.requested_cuda):
        lines.append(f"{result.build}: compiled with CUDA {result.toolchain.nvcc} instead of CUDA {wanted}")
    if beyond := beyond_plan_line(result):
        lines.append(f"remark: {beyond}")
    if result.stored and not result.reused and (objects := result.stored.record.objects):
        lines.append(f"{result.build}: {objects.sentence()}")
    return lines


def _refusal(result: BuildResult) -> str:
    """What the failed checks found: a fault of the wheel, or a mistake in cases.py."""
    return "cases.py is wrong" if result.mistake_in_cases else "refused"


def _marked(note: str) -> str:
    """The line as rich markup, with a coloured first word."""
    for word, colour in (("refused:", "red"), ("cases.py is wrong:", "red"), ("remark:", "yellow")):
        if note.startswith(word):
            return f"[{colour}]{word}[/]{escape(note.removeprefix(word))}"
    return escape(note)


def _cells(results: Sequence[BuildResult]) -> list[Cell]:
    """The cells that the wheels are for."""
    return [cell for result in results if result.stored and not result.exit for cell in result.build.serves]


def _install_commands(dist: Path, results: Sequence[BuildResult], torch_index: str) -> list[str]:
    """The commands for pip and uv, once for each version: the folder has the wheel for each Python."""
    commands: list[str] = []
    for result in results:
        if result.stored and not result.exit:
            name, version = result.stored.wheel.name.split("-")[:2]
            commands += commands_of_cells(dist.resolve(), name, version, result.build.serves, torch_index)
    return list(dict.fromkeys(commands))
