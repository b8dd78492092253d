"""The file facts.json: what the atlas says about each project."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.store import write_atomic

FACTS = Path(__file__).parent / "facts.json"


@dataclass
class Atlas:
    """The contents of facts.json."""

    #: The names of the torch releases whose symbols the wheels were linked with.
    inventories: list[str] = field(default_factory=list)
    #: The entries of the wheels of each project, newest first; `docs.atlas.entry` makes them.
    projects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: Projects without a wheel to judge, with the reason.
    none: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path = FACTS) -> Atlas:
        """Read the file; an empty atlas if there is none."""
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else cls()

    def write(self, path: Path) -> None:
        """Write the file: one line for each wheel, so that a change of one wheel is a change of one line."""
        projects = ",\n".join(
            f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]"
            for name, entries in sorted(self.projects.items())
        )
        text = (
            f'{{"inventories": {json.dumps(self.inventories)},\n'
            f'"none": {json.dumps(self.none, sort_keys=True, indent=0)},\n"projects": {{\n{projects}\n}}}}\n'
        )
        write_atomic(path, text.encode())
