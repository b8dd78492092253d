"""The text of a drafted cases.py."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

from builder.gate.draft.result import CALLED, CUDA_ONLY, Drafts, OpDraft

_WIDTH = 118

_INTRODUCTION = '''\
"""Draft of the cases of {name}, written by `buildfarm cases` in {cell}.

buildfarm guessed the inputs of each op and called the op with them; the call succeeded{exceptions}.
No result was compared with anything. The checks `values` and `gradients` are "not run" for a case until it has a
reference: for each GAP below, write a function that computes the same result in plain PyTorch.
Add a case with edge="empty" for each op, and more inputs: other sizes, dtypes and options.
"""
'''
_IMPORTS = """\
from __future__ import annotations

import torch

from builder.gate import Case
"""
_UNTRACED = '''\
def untraced(reason: str) -> dict[str, str]:
    """Return `not_claimed` for an op that torch cannot trace. Without this entry the five checks run."""
    return dict.fromkeys(("opcheck", "fake", "devices", "export", "compile"), reason)
'''


def cases_text(name: str, cell: str, drafts: Drafts) -> str:
    """Return a whole cases.py."""
    cases = [draft for draft in drafts.drafts if is_case(draft)]
    not_called = []
    if not all(is_case(draft) for draft in drafts.drafts if draft.required):
        not_called.append("the ops in NOT_CLAIMED")
    if any(draft.state == CUDA_ONLY for draft in cases):
        not_called.append("ops without a CPU kernel, whose inputs are untested")
    exceptions = f", except for {' and '.join(not_called)}" if not_called else ""
    parts = [_INTRODUCTION.format(name=name, cell=cell, exceptions=exceptions), _IMPORTS]
    if any(draft.untraced for draft in cases):
        parts.append(f"\n{_UNTRACED}")
    parts += [f"\n{part}" if at == 0 else part for at, part in enumerate(_lists(drafts, cases))]
    return "\n".join(parts)


def missing_text(drafts: Drafts) -> str:
    """Return what an existing cases.py lacks: functions and items to copy into it."""
    cases = [draft for draft in drafts.drafts if is_case(draft)]
    parts = [_UNTRACED] if any(draft.untraced for draft in cases) else []
    if cases:
        parts.append("CASES += [\n" + "\n".join(map(_case, cases)) + "\n]\n")
    if left := [draft for draft in drafts.drafts if draft.required and not is_case(draft)]:
        parts.append("NOT_CLAIMED |= {\n" + "".join(_not_claimed(left)) + "}\n")
    return "\n".join(parts)


def is_case(draft: OpDraft) -> bool:
    """Whether the draft becomes a case; the other ops go to NOT_CLAIMED."""
    named = any(one.keyword and "make." in one.source for one in draft.arguments)
    return draft.state in (CALLED, CUDA_ONLY) and not named


def _comment(draft: OpDraft) -> list[str]:
    text = [draft.signature]
    if draft.state == CUDA_ONLY:
        text.append(f"not called: {draft.reason}; the inputs are a guess")
    elif draft.results:
        text.append(f"returned {', '.join(draft.results)}")
    if draft.remark:
        text.append(draft.remark[:300])
    return [
        line
        for part in text
        for line in textwrap.wrap(
            " ".join(part.split()),
            _WIDTH,
            initial_indent="        # ",
            subsequent_indent="        #     ",
            break_long_words=False,
        )
    ]


def _lists(drafts: Drafts, cases: Sequence[OpDraft]) -> Iterator[str]:
    yield "CASES = [\n" + "".join(f"{_case(draft)}\n" for draft in cases) + "]\n"
    if drafts.public:
        listed = ", ".join(f'"{name}"' for name in drafts.public)
        yield f"#: Modules in which every public function needs a case.\nPUBLIC = [{listed}]\n"
    if left := [draft for draft in drafts.drafts if draft.required and not is_case(draft)]:
        yield (
            "#: Ops without a case, and why. Their check `ops` is not run.\nNOT_CLAIMED = {\n"
            + "".join(_not_claimed(left))
            + "}\n"
        )


def _case(draft: OpDraft) -> str:
    lines = [f'        op="{draft.op}",', *_comment(draft), '        name="draft",', *_inputs(draft)]
    named = [one for one in draft.arguments if one.keyword]
    if named:
        lines.append("        kwargs={" + ", ".join(f'"{one.name}": {one.source}' for one in named) + "},")
    lines.append("        reference=None,  # GAP: the same result in plain PyTorch")
    if draft.state == CUDA_ONLY or draft.device == "cuda":
        lines.append('        devices=["cuda"],')
    if draft.contiguous_only:
        lines.append("        contiguous_only=True,")
    if draft.mutates:
        lines.append(f"        mutates={list(draft.mutates)},")
    if draft.untraced:
        lines.append(f"        not_claimed=untraced({_quoted(draft.untraced, 90)}),")
    return "    Case(\n" + "\n".join(lines) + "\n    ),"


def _not_claimed(left: Sequence[OpDraft]) -> Iterator[str]:
    for draft in left:
        reason = draft.reason or "a keyword-only argument is a tensor, which a case cannot pass"
        yield f'    "{draft.op}": {_quoted(reason, 400)},\n'


def _quoted(text: str, most: int) -> str:
    """Return a Python string of at most `most` characters; a long one in several lines."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    plain = plain if len(plain) <= most else plain[: most - 1] + "…"
    if len(plain) <= 90:
        return _literal(plain)
    parts = textwrap.wrap(plain, 100, break_on_hyphens=False, drop_whitespace=False)
    return "(\n" + "".join(f"        {_literal(part)}\n" for part in parts) + "    )"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _inputs(draft: OpDraft) -> list[str]:
    values = [one.source for one in draft.arguments if not one.keyword]
    taken = "make" if any("make." in value for value in values) else "_"
    comma = "," * (len(values) == 1)
    line = f"        inputs=lambda {taken}: ({', '.join(values)}{comma}),"
    if len(line) <= _WIDTH:
        return [line]
    return [f"        inputs=lambda {taken}: (", *(f"            {value}," for value in values), "        ),"]
