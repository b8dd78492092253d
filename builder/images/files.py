"""Where the templates and the scripts of containers lie."""

from __future__ import annotations

from pathlib import Path


def templates() -> Path:
    """The folder of templates and scripts: in the installed package, else the checkout's `dockerfiles`."""
    installed = Path(__file__).parent / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "dockerfiles"
