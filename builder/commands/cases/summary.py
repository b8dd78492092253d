"""What `buildfarm cases` prints: how many ops were called, which were not and why, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Sequence

from builder.gate.draft.result import CALLED, CUDA_ONLY, OpDraft
from builder.result import CasesResult


def summary_text(results: Sequence[CasesResult]) -> str:
    """A paragraph for each extension; for a recipe that has cases, the text to add to its cases.py."""
    return "\n".join(f"{_summary(result)}{_stale(result)}" for result in results)


def summary_json(results: Sequence[CasesResult]) -> str:
    """Every draft, for programs."""
    data = [
        {
            "extension": result.extension,
            "wheel": result.wheel,
            "cell": str(result.cell),
            "file": str(result.file) if result.file else None,
            **result.drafts.to_json(),
        }
        for result in results
    ]
    return json.dumps(data, indent=1) + "\n"


def _summary(result: CasesResult) -> str:
    drafts = result.drafts.drafts
    name, covered = result.extension, len(result.drafts.covered)
    if not drafts and covered:
        return f"{name}: cases.py names every op and function that was found; there is nothing to draft\n"
    if not drafts:
        return (
            f"{name}: no op and no function with a tensor argument was found in {result.cell}\n"
            "  hint: under `imports` in extension.yaml, list every module that loads a shared library\n"
        )
    called = [draft for draft in drafts if draft.state == CALLED]
    without = " without a case" if covered else ""
    was = "was" if len(drafts) == 1 else "were"
    lines = [f"{name}: {len(called)} of {_ops(len(drafts))}{without} {was} called successfully in {result.cell}"]
    lines += [f"  {_why_not(draft)}" for draft in drafts if draft.state != CALLED]
    if result.file:
        move = (
            ""
            if result.file.absolute() == result.cases.absolute()
            else f" move the text of this file to {result.cases},"
        )
        lines += [
            f"wrote {result.file}",
            f"next: replace each GAP in this file by a reference,{move} then run your `buildfarm build`"
            " command again: it tests the wheel with the cases and does not compile",
        ]
    else:
        lines += [
            "cases.py was not changed; add these lines to cases.py, then run your `buildfarm build` command again:",
            "",
            result.text,
        ]
    return "\n".join(lines) + "\n"


def _stale(result: CasesResult) -> str:
    """What to change in the cases of ops that got a CPU kernel later."""
    return "".join(
        f'{result.extension}: in cases.py, remove `devices=["cuda"]` from the cases of {op}: the op has a CPU kernel\n'
        for op in result.drafts.stale
    )


def _why_not(draft: OpDraft) -> str:
    kind = "not called (CUDA only)" if draft.state == CUDA_ONLY else "not called"
    return f"{kind}: {draft.op}: {draft.reason}"


def _ops(count: int) -> str:
    return "1 op or function" if count == 1 else f"{count} ops and functions"
