"""Fold groups in the log of GitHub Actions."""

from __future__ import annotations

import os
from uuid import uuid4

from builder.log import console

#: A longer output is cut at its beginning: GitHub shows large logs slowly.
MOST_LINES = 4000


def in_github_actions() -> bool:
    """Whether this process runs in a workflow of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def fold_group(title: str, text: str) -> None:
    """Print text as a group that GitHub shows folded; prints nothing if there is no text.

    Workflow commands in the text have no effect: it is the output of other people's programs.
    """
    lines = text.splitlines()
    if not lines:
        return
    token = uuid4().hex
    left_out = [f"({len(lines) - MOST_LINES} lines left out)"] if len(lines) > MOST_LINES else []
    shown = [f"::group::{title}", f"::stop-commands::{token}", *left_out, *lines[-MOST_LINES:]]
    console.out("\n".join([*shown, f"::{token}::", "::endgroup::"]), highlight=False)
