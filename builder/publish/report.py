"""What a person and a program read at the end: the table, report.json; and the wheels in dist/."""

from __future__ import annotations

import glob
import io
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from builder.errors import FarmError
from builder.matrix.plan import Plan
from builder.proof import Check, Proof, Verdict
from builder.publish.index import install_command
from builder.publish.statement import SUFFIX, put_statement, statement_path
from builder.result import Result
from builder.store import Stored, write_whole
from builder.wheels.objects import Objects

#: Wide enough for the longest wheel name beside its figures; a terminal's own width otherwise.
PLAIN_WIDTH = 200


def render(*parts: Table | str) -> str:
    """Render for stdout: colours and the terminal's width only where it is one."""
    stream = io.StringIO()
    terminal = sys.stdout.isatty()
    console = Console(
        file=stream, force_terminal=terminal, width=None if terminal else PLAIN_WIDTH, highlight=False, emoji=False
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def hand_over(dist: Path, plan: Plan, results: Sequence[Result]) -> list[Path]:
    """Put every wheel without a failed check into `dist`, each whole or not at all, and write report.json.

    Beside each goes the unsigned statement of where it came from (`statement`).

    A wheel that is refused now, or replaced by one of the same version under another platform tag, does not stay
    there from an earlier run: pip would go on taking it.
    """
    dist.mkdir(parents=True, exist_ok=True)
    _sweep(dist)
    handed = []
    for result in results:
        if result.stored is None or result.error:
            continue
        target = dist / result.stored.wheel.name
        refused = any(proof.verdict is Verdict.FAILED for proof in result.proofs)
        for other in dist.glob(f"{glob.escape(target.name.rpartition('-')[0])}-*.whl"):
            if refused or other.name != target.name:
                other.unlink()
                other.with_name(f"{other.name}.metadata").unlink(missing_ok=True)
                statement_path(other).unlink(missing_ok=True)
        if refused:
            continue
        data = result.stored.wheel.read_bytes()
        if not target.exists() or target.read_bytes() != data:
            write_whole(target, data)
        put_statement(result.stored, dist)
        handed.append(target)
    report = dist / "report.json"
    text = report_json(plan, results).encode()
    if not report.exists() or report.read_bytes() != text:
        write_whole(report, text)
    return handed


def _sweep(dist: Path) -> None:
    """Delete what runs killed in the middle of writing left beside the files they never finished."""
    for aside in dist.glob(".*.*"):
        pid = aside.name.rpartition(".")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            aside.unlink(missing_ok=True)


def report_json(plan: Plan, results: Sequence[Result]) -> str:
    """Everything the run knows, for programs. Times of this run are left out: the same state gives the same bytes."""
    data: dict[str, Any] = {
        "builds": [_entry(result) for result in results],
        "skips": [
            {
                "torch": str(skip.torch),
                "cuda": str(skip.cuda),
                "python": str(skip.python),
                "extension": skip.extension,
                "code": skip.code,
                "reason": skip.reason,
            }
            for skip in plan.skips
        ],
    }
    return json.dumps(data, indent=1) + "\n"


def _entry(result: Result) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "build": str(result.build),
        "serves": [str(cell) for cell in result.build.serves],
        "archs": [str(arch) for arch in result.build.archs],
        "status": "failed" if result.exit else "built",
        "error": str(result.error) if result.error else None,
        "hints": list(result.error.hints) if result.error else [],
    }
    if result.stored:
        entry |= {
            "wheel": result.stored.wheel.name,
            "size": result.stored.wheel.stat().st_size,
            "digest": result.stored.digest,
            "record": result.stored.record,
            "provenance": _provenance(result.stored),
            "proofs": [proof.to_json() for proof in result.proofs],
        }
    return entry


def _provenance(stored: Stored) -> dict[str, Any] | None:
    """The statement beside the wheel, once it was handed over; nobody signs it here."""
    path = statement_path(stored.wheel)
    return {"statement": path.name, "signed": False} if path.is_file() else None


def build_text(dist: Path, plan: Plan, results: Sequence[Result]) -> str:
    """The closing table, what was refused and why, what was not run and why, and the commands that install.

    Empty when no build came to a wheel: then the errors have said all there is.
    """
    if not any(result.stored for result in results):
        return ""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("wheel", overflow="fold")
    for column in ("size", "cells", "passed", "failed", "not run", "GPU", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_row(result))
    notes = [line for result in results for line in _notes(result)]
    commands = []
    for result in results:
        if result.stored and not result.exit:
            name, version = result.stored.wheel.name.split("-")[:2]
            commands.append(f"  {install_command(dist.absolute(), name, version)}")
    parts: list[Table | str] = [table]
    if notes:
        parts += ["", *map(escape, dict.fromkeys(notes))]
    if commands:
        parts += [
            "",
            "install, in an environment that has the torch of a served cell:",
            *map(escape, commands),
            f"beside each wheel lies where it came from (SLSA provenance, unsigned): WHEEL{SUFFIX}",
        ]
    if plan.skips:
        parts += [
            "",
            f"{len(plan.skips)} cells are skipped; `buildfarm plan` with the same selection says why.",
        ]
    return render(*parts)


def failures(results: Sequence[Result]) -> list[tuple[FarmError, list[str]]]:
    """The distinct errors of a run, each with the builds it stopped."""
    found: dict[str, tuple[FarmError, list[str]]] = {}
    for result in results:
        if result.error:
            found.setdefault(str(result.error), (result.error, []))[1].append(str(result.build))
    return list(found.values())


def _row(result: Result) -> list[str]:
    build = result.build
    seconds = f"{result.seconds:.0f} s" if not result.reused else "kept"
    if result.stored is None:
        return [f"[red]{escape(str(build))}[/]", "-", str(len(build.serves)), "-", "-", "-", "-", seconds]
    counts = Counter(proof.verdict for proof in result.proofs)
    failed = counts[Verdict.FAILED]
    return [
        escape(result.stored.wheel.name)
        if not result.exit
        else f"[red]{escape(result.stored.wheel.name)}[/] (refused)",
        _size(result.stored.wheel.stat().st_size),
        str(len(build.serves)),
        str(counts[Verdict.PASSED]),
        f"[red]{failed}[/]" if failed else "0",
        str(counts[Verdict.NOT_RUN]),
        _gpu(result.proofs),
        seconds,
    ]


def _gpu(proofs: Sequence[Proof]) -> str:
    verdicts = Counter(proof.verdict for proof in proofs if proof.check is Check.GPU_VALUES)
    if verdicts[Verdict.FAILED]:
        return "failed"
    if not verdicts[Verdict.PASSED]:
        return "not run"
    return f"{verdicts[Verdict.PASSED]} of {verdicts.total()}" if verdicts[Verdict.NOT_RUN] else "passed"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def _notes(result: Result) -> list[str]:
    """Reasons, one line each: failed checks, and what was not run, grouped."""
    lines = []
    for proof in result.proofs:
        if proof.verdict is Verdict.FAILED:
            where = f" in {proof.cell}" if proof.cell else ""
            lines.append(f"refused: {result.build}: {proof.check}{where}: {proof.reason}")
    lines += not_run_lines([p for p in result.proofs if p.verdict is Verdict.NOT_RUN])
    if result.toolchain and (wanted := result.toolchain.part("stands in for")):
        lines.append(f"{result.build}: compiled with CUDA {result.toolchain.part('nvcc')}, a stand-in for {wanted}")
    if result.stored and not result.reused and (told := result.stored.record.get("objects")):
        lines.append(f"{result.build}: {Objects.from_json(told).sentence()}")
    return lines


def not_run_lines(proofs: Sequence[Proof]) -> list[str]:
    """One line for each reason: which checks it kept from how many cells."""
    groups: dict[str, list[Proof]] = {}
    for proof in proofs:
        groups.setdefault(proof.reason, []).append(proof)
    lines = []
    for reason, members in groups.items():
        checks = ", ".join(dict.fromkeys("GPU" if p.check.on_gpu else str(p.check) for p in members))
        cells = list(dict.fromkeys(str(p.cell) for p in members if p.cell))
        where = f" in {cells[0]}" if len(cells) == 1 else f" in {len(cells)} cells" if cells else ""
        lines.append(f"{checks}: not run{where}: {reason}")
    return lines
