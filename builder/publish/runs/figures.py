"""Titles and figures of a report as short texts, for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from builder.gate.system.sizes import size_text
from builder.progress.display import clock
from builder.proof import Proof
from builder.publish.proof_lines import counts
from builder.publish.runs.view import BuildView, Report, RunView
from builder.timeline.timeline import Timeline


def title_of(report: Report) -> str:
    """`buildfarm build: 1 failed, 2 built`; of several runs their number."""
    if len(report.runs) == 1:
        words = report.runs[0].command.split()
        return f"{' '.join(words[:2])}: {results_text(report.runs[0])}"
    return f"{len(report.runs)} runs of buildfarm, {len(report.builds)} builds"


def results_text(run: RunView) -> str:
    """`1 failed, 2 built`."""
    return ", ".join(f"{count} {result}" for result, count in run.results) or "no builds"


def seconds_text(seconds: float) -> str:
    """`4.2 s` below one minute, else `2:03`; empty for nothing."""
    if not seconds:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{clock(seconds)} min" if seconds < 3600 else f"{clock(seconds)} h"


def verdicts_text(build: BuildView) -> str:
    """How many checks of a build have which verdict; empty without checks."""
    proofs: Sequence[Proof] = (*build.proofs, *(proof for cell in build.cells for proof in cell.proofs))
    return counts(proofs) if proofs else ""


def use_text(timeline: Timeline) -> str:
    """The cores and the memory that the run used, as sentences; empty without samples."""
    samples = timeline.samples
    if not samples:
        return ""
    average = sum(sample.cores for sample in samples) / len(samples)
    where = " on the machine that started it" if timeline.machines else ""
    return (
        f"The programs of the run{where} used {average:.1f} of {timeline.cores} cores on average and at most"
        f" {size_text(max(sample.memory for sample in samples))} of memory. All programs of the machine together used"
        f" at most {size_text(max(sample.machine_memory for sample in samples))} of {size_text(timeline.memory)}."
    )
