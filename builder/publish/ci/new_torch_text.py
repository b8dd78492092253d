"""What `buildfarm plan --new-torch` prints: new releases of torch, and the lines to add for them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from builder.matrix.axes import Python, Torch
from builder.matrix.compat import and_list


@dataclass(frozen=True)
class NewTorch:
    """A release of torch that matrix.yaml does not have."""

    #: The release.
    torch: Torch
    #: How many builds it adds; None if buildfarm does not know the release.
    builds: int | None = None
    #: How many cells these builds serve.
    cells: int = 0
    #: Pythons with wheels for Linux x86_64 on the package index, if buildfarm does not know the release.
    pythons: tuple[Python, ...] = ()
    #: Whether compat.yaml has a row for the series.
    series_known: bool = True


def new_torch_text(found: list[NewTorch]) -> str:
    """The releases as Markdown, the first line as a title; empty without a release."""
    if not found:
        return ""
    title = f"New torch {'release' if len(found) == 1 else 'releases'}: {and_list(each.torch for each in found)}"
    return "\n\n".join([title, *(_known(each) if each.builds is not None else _unknown(each) for each in found)]) + "\n"


def new_torch_json(found: list[NewTorch]) -> str:
    """The releases as JSON."""
    releases = [
        {
            "torch": str(each.torch),
            "known": each.builds is not None,
            "builds": each.builds,
            "cells": each.cells if each.builds is not None else None,
        }
        for each in found
    ]
    return json.dumps({"releases": releases}, indent=1) + "\n"


def _known(new: NewTorch) -> str:
    return (
        f"matrix.yaml does not have torch {new.torch}, which adds {_count(new.builds or 0, 'build')} for"
        f" {_count(new.cells, 'cell')}. To build them, add a line to `torch` in matrix.yaml:\n\n"
        f"```yaml\n  - {new.torch.series}\n```"
    )


def _unknown(new: NewTorch) -> str:
    pythons = f" for Python {and_list(new.pythons)}" if new.pythons else ""
    lines = [f"releases: [..., {new.torch}]"]
    if not new.series_known:
        lines = [f"releases: [{new.torch}]", f"python: [{', '.join(map(str, new.pythons))}]"]
    row = "\n".join([f"  {new.torch.series}:", *(f"    {line}" for line in lines)])
    return (
        f"The package index has wheels of torch {new.torch}{pythons}. This version of buildfarm does not know this"
        " release: install a newer buildfarm. In a checkout of buildfarm, add the facts to"
        f" builder/matrix/compat.yaml:\n\n```yaml\n{row}\n```"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
