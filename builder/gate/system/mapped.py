"""The files that this process has mapped into its memory, such as the libraries that it has loaded."""

from __future__ import annotations

from pathlib import Path


def mapped_files() -> set[str]:
    """Return the path of each mapped file; a deleted file has the suffix " (deleted)"."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/" in line}
