"""The text of extension.yaml for a drafted recipe."""

from __future__ import annotations

import textwrap

import yaml

from builder.recipes.inspection.findings import Draft, Entry

_WIDTH = 118
_BLOCKS = ("source",)


def recipe_text(draft: Draft, command: str) -> str:
    """extension.yaml with a comment for each key that the inspection decided."""
    lines = _comment(
        f"Written by `{command}` from an inspection of the source. Change what is wrong:"
        " buildfarm does not write this file again. All keys: docs/reference/extension-yaml.md in the repository of"
        " buildfarm"
    )
    for entry in draft.entries:
        lines += _comment(entry.comment) + _lines(entry)
    for question in draft.questions:
        lines += _comment(f"QUESTION: {question}")
    return "\n".join(lines) + "\n"


def _lines(entry: Entry) -> list[str]:
    if isinstance(entry.value, dict) and entry.key in _BLOCKS:
        return [f"{entry.key}:", *(f"  {key}: {_value(value)}" for key, value in entry.value.items())]
    return [f"{entry.key}: {_value(entry.value)}"]


def _value(value: object) -> str:
    """A value on one line. Quotes are added only where YAML needs them."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ") if text else []
