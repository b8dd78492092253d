"""What `adopt` prints: a line for each wheel, the cells that were tested, and why the others were not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from builder.proof import Verdict
from builder.publish.index.bar import Level
from builder.publish.index.text.publish_text import publish_data, publish_text
from builder.result import AdoptResult

#: Cells of one kind to print for a wheel; `--json` has all.
_MOST = 8


def adopt_text(results: Sequence[AdoptResult], index: str, required: Sequence[Level]) -> str:
    """As `publish_text`, and for each wheel where it came from and its cells; what to do about a refusal."""
    text = publish_text([replace(one.published, notes=tuple(_notes(one))) for one in results], index, None)
    # A wheel that was refused before a test needs no advice.
    short = [one for one in results if one.published.reasons and one.proofs]
    advice = []
    if short:
        wanted = " and ".join(map(str, required))
        advice += [f"Each tested cell must reach {wanted}. `buildfarm publish --help` explains the levels."]
    if any(proof.verdict is Verdict.FAILED for one in short for proof in one.proofs):
        advice += ["A failed check refuses a wheel at every level. A recipe accepts a known finding with `accepts`."]
    return "\n".join([text, *advice, ""]) if advice else text


def adopt_json(results: Sequence[AdoptResult]) -> str:
    """Everything about each wheel."""
    data = [
        publish_data(one.published)
        | {
            "built_here": False,
            "origin": one.origin,
            "tested": [str(cell) for cell in one.cells],
            "not_run": one.not_run,
            "not_claimed": list(one.others),
            "left_out": one.left_out,
            "proofs": [proof.to_json() for proof in one.proofs],
        }
        for one in results
    ]
    return json.dumps(data, indent=1) + "\n"


def _notes(result: AdoptResult) -> Iterator[str]:
    yield f"not built here; from {result.origin}"
    if result.cells:
        yield f"tested in {_first([str(cell) for cell in result.cells])}"
    reasons: dict[str, list[str]] = {}
    for cell, reason in result.not_run.items():
        reasons.setdefault(reason, []).append(cell)
    for reason, cells in reasons.items():
        yield f"not run in {_first(cells)}: {reason}"
    if result.left_out:
        yield f"the options leave out {result.left_out} more {'cell' if result.left_out == 1 else 'cells'} of the wheel"
    for sentence in result.others:
        yield f"not for {sentence}"


def _first(cells: Sequence[str]) -> str:
    shown = ", ".join(cells[:_MOST])
    return f"{shown} and {len(cells) - _MOST} more; --json prints all" if len(cells) > _MOST else shown
