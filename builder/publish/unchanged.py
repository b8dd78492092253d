"""Files that are written only when their content changes, so that a second run leaves `dist/` as it is."""

from __future__ import annotations

from pathlib import Path

from builder.store import write_atomic


def write_if_changed(path: Path, data: bytes) -> None:
    """Replace a file atomically, unless it has this content already."""
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)
