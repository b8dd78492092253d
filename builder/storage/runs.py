"""The history of runs: the report of each `buildfarm build`, kept in the store."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from builder.errors import UsageError
from builder.process import mask_credentials
from builder.store import Store, write_atomic


@dataclass(frozen=True)
class Run:
    """One earlier run.

    Attributes:
        id: its name, which begins with the time of its start.
        started: when it started, UTC.
        seconds: how long it took.
        command: the command line.
        folder: where the command was started.
        report: its report.json.

    """

    id: str
    started: datetime
    seconds: float
    command: str
    folder: str
    report: Mapping[str, Any]

    def counts(self) -> dict[str, int]:
        """How many builds have each status: `built`, `failed`."""
        return dict(Counter(str(build["status"]) for build in self.report["builds"]))

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        return {
            "id": self.id,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": self.seconds,
            "command": self.command,
            "folder": self.folder,
            "report": dict(self.report),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """Read what `to_json` wrote; raises KeyError, ValueError or TypeError on anything else."""
        started = datetime.fromisoformat(data["started"])
        return cls(data["id"], started, float(data["seconds"]), data["command"], data["folder"], data["report"])


def save_report(store: Store, started: datetime, seconds: float, report: str) -> None:
    """Keep the report.json of the run of this process."""
    command = mask_credentials(shlex.join(["buildfarm", *sys.argv[1:]]))
    name = f"{started:%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
    run = Run(name, started, round(seconds, 1), command, str(Path.cwd()), json.loads(report))
    write_atomic(store.root / "runs" / f"{name}.json", (json.dumps(run.to_json(), indent=1) + "\n").encode())


def runs(store: Store) -> list[Run]:
    """All runs that the store knows, the newest first."""
    found = []
    for path in sorted((store.root / "runs").glob("*.json"), reverse=True):
        try:
            found.append(Run.from_json(json.loads(path.read_bytes())))
        except (OSError, ValueError, KeyError, TypeError):  # deleted meanwhile, or of a different version
            continue
    return found


def find_run(found: Sequence[Run], name: str) -> Run:
    """The run whose id is `name` or begins with it; raises UsageError when there is none or more than one."""
    matches = [run for run in found if run.id.startswith(name)]
    if len(matches) != 1:
        problem = "several runs have an id that begins with this text" if matches else "no run has this id"
        raise UsageError(problem, where=name, hints=["`buildfarm store history` lists the runs"])
    return matches[0]
