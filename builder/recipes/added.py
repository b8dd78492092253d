"""What `add` did, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from builder.matrix.config import MATRIX, RECIPE, GitSource, Recipe, SdistSource
from builder.matrix.load import load_matrix
from builder.publish.terminal import to_text
from builder.recipes.fetch import PinnedSource
from builder.recipes.inspection.findings import Draft
from builder.recipes.matrix_file import NewAxes


@dataclass(frozen=True)
class Added:
    """What `add` did."""

    #: The recipe, as `build` reads it.
    recipe: Recipe
    #: The source.
    pinned: PinnedSource
    #: The file matrix.yaml.
    matrix: Path
    #: The versions in that file if `add` created it, else None.
    axes: NewAxes | None
    #: What the inspection found, or None if there was a recipe already.
    draft: Draft | None
    #: Whether matrix.yaml had that recipe already.
    listed: bool = False
    #: Whether the files were written, or would be.
    written: bool = True


def added_text(added: Added) -> str:
    """The findings, one line each with the questions last, and the written files."""
    file = escape(_short(added.recipe.folder / RECIPE))
    if added.listed:
        return to_text(f"{file} is the recipe of {escape(added.recipe.name)} already; nothing was changed")
    named = f"[bold]{escape(added.recipe.name)} {added.recipe.stated_version}[/]"
    lines = [f"{named} from {escape(added.pinned.label)}{_pin(added)}"]
    for sign, asked in (("  ", False), ("[yellow]? [/]", True)):
        found = [each for each in added.draft.findings if each.question is asked] if added.draft else []
        lines += [f"{sign}{escape(each.found)} → {escape(each.consequence)}" for each in found]
    wrote, extends = ("wrote", "added") if added.written else ("would write", "would add")
    lines.append(f"{wrote} {file}" if added.draft else f"used {file} unchanged")
    matrix = escape(_short(added.matrix))
    extended = f"{wrote} {matrix}: {added.axes}" if added.axes else f"{extends} the folder to `extensions` in {matrix}"
    return to_text(*lines, extended)


def next_steps(added: Added) -> str:
    """The commands that the user may want to run after `add`."""
    option = "" if added.matrix == MATRIX else f" --matrix {added.matrix}"
    build = f"  buildfarm build --ext {added.recipe.name}{option}"
    cases = f"  buildfarm cases --ext {added.recipe.name}{option}"
    lines = ["To build the extension:", build]
    archs = added.axes.archs if added.axes else added.matrix.exists() and load_matrix(added.matrix).archs
    if not archs and added.recipe.cuda == "required":
        lines = ["To build the extension, for all GPU architectures of torch or for one:", build, f"{build} --arch 9.0"]
    return to_text(
        *("", *lines),
        *("", "After the build, to draft a cases.py with a case for each op:", cases),
    )


def added_json(added: Added) -> str:
    """What `add` wrote and found, as JSON."""
    findings = added.draft.findings if added.draft else []
    data = {
        "name": added.recipe.name,
        "version": added.recipe.version,
        "recipe": str(added.recipe.folder / RECIPE),
        "matrix": str(added.matrix.absolute()),
        "findings": [
            {"found": each.found, "consequence": each.consequence, "question": each.question} for each in findings
        ],
    }
    return json.dumps(data, indent=1) + "\n"


def _pin(added: Added) -> str:
    match added.recipe.source:
        case SdistSource(sha256=sha256):
            return f" (sha256 {sha256[:12]}…)"
        case GitSource(revision=revision):
            return f" (commit {revision[:12]})"
    return ""


def _short(path: Path) -> str:
    """The path relative to the current folder, if it is below it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
