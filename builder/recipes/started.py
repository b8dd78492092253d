"""What `init` prints: the files, what they are, and the next commands."""

from __future__ import annotations

import json
from pathlib import Path

from rich.markup import escape

from builder.publish.terminal import to_text
from builder.recipes.matrix_file import NewAxes
from builder.recipes.new_extension import NewExtension


def started_json(folder: Path, extension: NewExtension) -> str:
    """The files for programs."""
    files = [str(folder / path) for path in (*extension.files, "matrix.yaml")]
    data = {"name": extension.name, "files": files, "notes": extension.notes, "gaps": extension.gaps}
    return json.dumps(data, indent=1) + "\n"


def started_text(folder: Path, extension: NewExtension, axes: NewAxes) -> str:
    """The text after `init`."""
    lines = [f"[bold]{extension.name}[/]", *(f"  {escape(note)}" for note in extension.notes)]
    lines += [f"wrote {escape(str(folder / path))}" for path in extension.files]
    lines += [f"wrote {escape(str(folder / 'matrix.yaml'))}: {axes}", ""]
    if extension.gaps:
        lines += [
            "Before the build, check these files. The extension compiles without a change:",
            *(f"  {escape(gap)}" for gap in extension.gaps),
        ]
        lines += ["If you change one of these files after the build, buildfarm compiles the extension again.", ""]
    lines.append("To compile and test the extension:")
    if folder != Path():
        lines.append(f"  cd {escape(str(folder))}")
    lines.append("  buildfarm build")
    if not axes.archs:
        lines.append("  buildfarm build --arch 9.0    (one GPU architecture compiles faster)")
    if "cases.py" not in extension.files:
        lines += ["", "After the build, draft a cases.py with a case for each op:", "  buildfarm cases"]
    return to_text(*lines)
