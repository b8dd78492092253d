"""The history of runs: the report of each `build` and `smoke` and the logs of failed builds, kept in the store."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter

from builder.gate.amounts import join_names
from builder.log import print_warning
from builder.masking import mask_credentials
from builder.progress.display import Timeline
from builder.proof import Verdict
from builder.store import Store, write_atomic
from builder.untrusted import MAX_OWN_JSON, JsonError, read_json

#: The results of a build, in the order in which they are shown.
ORDER = FAILED, REFUSED, BUILT, TESTED, REUSED = ("failed", "refused", "built", "tested", "already built")
#: Runs that are read to know how long a step takes.
_RECENT = 10


@dataclass(frozen=True)
class Run:
    """One earlier run."""

    #: Its name, which begins with the time of its start.
    id: str
    #: started, seconds: when it started, UTC, and how long it took.
    started: datetime
    seconds: float
    #: command, folder: the command line, and where it was started.
    command: str
    folder: str
    #: Its report.json, with the finished builds.
    report: Mapping[str, Any]
    #: For each failed build, the path of the log that was kept.
    logs: Mapping[str, str] = field(default_factory=dict)
    #: The names of the builds whose wheel was in the store.
    reused: tuple[str, ...] = ()
    #: When what happened; None for a run of an earlier version of buildfarm.
    timeline: Timeline | None = None

    @property
    def extensions(self) -> str:
        """The names of the extensions of its builds: `a, b and 2 more`."""
        return join_names(sorted({str(build.get("extension") or build["build"]) for build in self.report["builds"]}))

    def counts(self) -> dict[str, int]:
        """How many builds have each result, in ORDER."""
        counts = Counter(map(self.result, self.report["builds"]))
        return {result: counts[result] for result in ORDER if counts[result]}

    @property
    def results(self) -> str:
        """`1 failed, 2 built`."""
        return ", ".join(f"{count} {result}" for result, count in self.counts().items()) or "no builds"

    def result(self, build: Mapping[str, Any]) -> str:
        """The result of a build of the report, one of ORDER."""
        if build["status"] == FAILED:
            failed = any(proof["verdict"] == Verdict.FAILED for proof in build.get("proofs", ()))
            return REFUSED if failed and "wheel" in build else FAILED
        if build["status"] == TESTED:
            return TESTED
        return REUSED if build.get("build") in self.reused else BUILT


#: A run as plain data.
RUN = TypeAdapter(Run)


def save_run(
    store: Store,
    started: datetime,
    seconds: float,
    report: str,
    *,
    logs: Mapping[str, Path] | None = None,
    reused: Sequence[str] = (),
    timeline: Timeline | None = None,
) -> Run:
    """Keep the report.json of the run of this process, and copies of the logs of its failed builds.

    `logs` has a log for each failed build. `reused` are the builds whose wheel was in the store.
    """
    name = f"{started:%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
    folder = store.root / "runs" / name
    folder.mkdir()
    kept = {}
    for build, log in (logs or {}).items():
        kept[build] = str(shutil.copyfile(log, folder / f"{build}.log"))
        # As they stand inside a string of JSON. The next run overwrites the first.
        report = report.replace(json.dumps(str(log))[1:-1], json.dumps(kept[build])[1:-1])
    run = Run(
        name,
        started,
        round(seconds, 1),
        mask_credentials(shlex.join(["buildfarm", *sys.argv[1:]])),
        str(Path.cwd()),
        json.loads(report),
        kept,
        tuple(reused),
        timeline,
    )
    write_atomic(folder / "run.json", (json.dumps(RUN.dump_python(run, mode="json"), indent=1) + "\n").encode())
    return run


def last_steps(store: Store) -> dict[tuple[str, str], float]:
    """The seconds of each stage of each build in the newest run of this folder that finished the build."""
    found: dict[tuple[str, str], float] = {}
    for run in reversed(runs(store, most=_RECENT)):
        if run.timeline and run.folder == str(Path.cwd()):
            ended = {build.get("build") for build in run.report["builds"] if run.result(build) != FAILED}
            stages = [one for one in run.timeline.stages if one.build.partition(" in ")[0] in ended]
            found |= {(one.build, one.stage): one.end - one.start for one in stages}
    return found


def runs(store: Store, *, most: int = 0) -> list[Run]:
    """The runs that the store knows, the newest first; warns of records that cannot be read. `most`: 0 for all."""
    found = []
    for path in sorted((store.root / "runs").glob("*/run.json"))[-most:]:
        try:
            found.append(read_json(path, RUN.validate_python, limit=MAX_OWN_JSON))
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError as error:
            print_warning(f"{path} cannot be read: {error.strerror}; this run is left out")
        except JsonError:
            print_warning(f"{path} is damaged or of a different version of buildfarm; this run is left out")
    return sorted(found, key=lambda run: (run.started, run.id), reverse=True)
