"""What `yank`, `unyank` and `index` print."""

from __future__ import annotations

import json
from collections.abc import Sequence

from builder.publish.index.integrity import IndexCheck


def changed_text(what: str, names: Sequence[str], *, as_json: bool) -> str:
    """A line for each name, such as `yanked NAME`; as JSON the names by what was done."""
    if as_json:
        return json.dumps({what.replace(" ", "_"): list(names)}, indent=1) + "\n"
    return "".join(f"{what} {name}\n" for name in names) or f"{what} nothing\n"


def check_text(result: IndexCheck) -> str:
    """The faults, then how much was checked."""
    lines = [f"finished the interrupted change of {project}" for project in result.finished]
    lines += result.faults
    if result.unused:
        lines.append(
            f"{len(result.unused)} of the folders in files/ belong to no wheel, such as those of killed uploads;"
            " `buildfarm index prune` deletes them after a day"
        )
    counts = ((result.projects, "project"), (result.wheels, "wheel"), (len(result.faults), "fault"))
    lines.append("checked: " + ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts))
    return "\n".join(lines) + "\n"


def check_json(result: IndexCheck) -> str:
    """Everything about the check."""
    data = {
        "wheels": result.wheels,
        "projects": result.projects,
        "finished": list(result.finished),
        "faults": list(result.faults),
        "unused": list(result.unused),
    }
    return json.dumps(data, indent=1) + "\n"
