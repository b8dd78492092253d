"""`buildfarm report`: one HTML page about a run, without external files and without scripts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.commands.folders import open_store
from builder.errors import Code, NothingSelectedError
from builder.gate.amounts import size_text
from builder.gate.report import KINDS
from builder.log import print_line
from builder.option import argument, option
from builder.progress.display import clock
from builder.proof import Verdict
from builder.publish.people.people_pages import templates
from builder.publish.proof_lines import counts
from builder.publish.runs.history import BuildView, Run, causes_of_report, plain, report_of, runs, seconds_text
from builder.store import write_atomic

_ORDER = (Verdict.FAILED, Verdict.ACCEPTED, Verdict.NOT_RUN, Verdict.PASSED)
_HERE = Path(__file__).parent
#: Characters of the evidence of one proof that are shown; the run.json in the store has all.
LONGEST = 6000


@dataclass(frozen=True)
class ReportOptions:
    """The options of `buildfarm report`."""

    run: str | None = argument(
        "The id of a run, or its first characters, as `buildfarm store history` lists them. Default:"
        " the newest run that was started in this folder.",
        "RUN",
        default=None,
    )
    out: Path = option("The page to write.", "FILE", default=Path("buildfarm-report.html"))
    store: Path | None = None


def report(options: ReportOptions) -> None:
    """Write a page about a run of `build` or `smoke`: results, checks, ends of logs, and a timeline.

    Examples:
        buildfarm report
        buildfarm report 20261122 --out report.html
    """
    store, here = open_store(options.store, run=False, must_exist=True), str(Path.cwd())
    found = [run for run in runs(store) if (run.id.startswith(options.run) if options.run else run.folder == here)]
    if not found:
        sentence = "no run has this id" if options.run else "no run was started in this folder"
        hint = "`buildfarm store history` lists the runs"
        raise NothingSelectedError(sentence, Code.NO_RUN, where=options.run or here, hints=[hint])
    write_atomic(options.out.absolute(), report_page(found[0]).encode())
    print_line(f"wrote {options.out}: {found[0].title(plain)}, in {found[0].folder}")


def report_page(run: Run) -> str:
    """The HTML of the report of a run."""
    builds, skips = report_of(run)
    environment = templates(_HERE, style=(_HERE / "report.css").read_text())
    environment.filters |= {
        "clock": clock,
        "counts": counts,
        "evidence": evidence_text,
        "plain": plain,
        "seconds": seconds_text,
        "size": size_text,
        "why": _why,
        "worst_first": lambda proofs: sorted(proofs, key=lambda proof: _ORDER.index(proof.verdict)),
    }
    return environment.get_template("report.html.j2").render(
        title=run.title(plain), run=run, builds=builds, skips=skips
    )


def _why(build: BuildView) -> list[tuple[str, str]]:
    """Each cause as its kind and a sentence, what failed first."""
    causes = causes_of_report([build])
    return [(kind, sentence) for kind in reversed(KINDS) for sentence in causes.sentences(kind)]


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """The evidence of a proof as JSON, cut at LONGEST characters."""
    text = plain(json.dumps(evidence, indent=1, ensure_ascii=False))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… ({len(text) - LONGEST} more characters; runs/ID/run.json in the store has all)"
