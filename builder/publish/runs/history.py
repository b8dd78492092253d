"""The runs of `build` and `smoke` that the store keeps: their reports, the logs of failed builds, what readers see."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter

from builder.diagnosis.first_error import last_lines
from builder.errors import Code, UsageError, mask_credentials
from builder.gate.amounts import join_names
from builder.gate.report import Causes, causes_of
from builder.log import print_warning
from builder.process import text_since
from builder.progress.display import Timeline, clock
from builder.proof import Proof, Verdict, proofs_of
from builder.publish.index.levels import levels
from builder.publish.proof_lines import counts, findings, proven_on
from builder.store import Store, write_atomic
from builder.untrusted import MAX_OWN_JSON, JsonError, known_json, parse_plain, visible, without_escapes

#: The results of a build, in the order in which they are shown.
ORDER = FAILED, REFUSED, BUILT, TESTED, REUSED = ("failed", "refused", "built", "tested", "already built")
#: Runs that are read to know how long a step takes.
_RECENT = 10
#: Characters of one line that are shown.
LONGEST_LINE = 400


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

    def title(self, name: Callable[[str], str]) -> str:
        """`buildfarm build of NAME: 1 failed, 2 built`. `name` makes a name harmless."""
        of = f" of {name(self.extensions)}" if self.extensions else ""
        return f"{' '.join(self.command.split()[:2])}{of}: {self.results}"

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
    write_atomic(folder / "run.json", RUN.dump_json(run, indent=1))
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
        if run := known_json(path, RUN.validate_python, limit=MAX_OWN_JSON):
            found.append(run)
        elif path.exists():  # not deleted meanwhile
            print_warning(f"{path} is damaged or of a different version of buildfarm; this run is left out")
    return sorted(found, key=lambda run: (run.started, run.id), reverse=True)


def plain(text: str, longest: int = LONGEST_LINE) -> str:
    """Text from logs, wheels and the command line without anything that a terminal or a browser would obey.

    Long lines are cut. Of a line that a program wrote over with carriage returns, the last state is kept.
    """
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        safe = visible(without_escapes(line).rstrip("\r").rpartition("\r")[2])
        more = f" … ({len(safe) - longest} more characters)" if len(safe) > longest else ""
        lines.append(safe[:longest] + more)
    return "\n".join(lines)


@dataclass(frozen=True)
class CellView:
    """One cell of one build."""

    cell: str
    #: `gpu`, `cpu`, `static`, `none` or `failed` by the proofs; `not built` without a wheel.
    level: str
    #: The GPU models on which every op was checked.
    gpus: tuple[str, ...]
    proofs: tuple[Proof, ...]


@dataclass(frozen=True)
class BuildView:
    """One build of one run."""

    #: Its name, or the file name of a tested wheel.
    build: str
    #: One of ORDER.
    result: str
    #: From its start to its end in this run; 0 if unknown.
    seconds: float = 0
    #: File name of the wheel, and its size in bytes; None without a wheel.
    wheel: str | None = None
    size: int | None = None
    #: Compile steps that the compiler cache saved, and all steps; None without a compile or a compiler cache.
    objects: Mapping[str, int] | None = None
    #: Why it failed; None without an error.
    error: str | None = None
    hints: tuple[str, ...] = ()
    #: Checks of the file; those in cells are in `cells`.
    proofs: tuple[Proof, ...] = ()
    cells: tuple[CellView, ...] = ()
    #: log, log_end: path and last lines of the log of a failed build; without lines if it cannot be read.
    log: str = ""
    log_end: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether it has no good wheel."""
        return self.result in (FAILED, REFUSED)

    @property
    def all_proofs(self) -> tuple[Proof, ...]:
        """The checks of the file and of each cell."""
        return (*self.proofs, *(proof for cell in self.cells for proof in cell.proofs))

    @property
    def verdicts(self) -> str:
        """How many checks have which verdict; empty without checks."""
        return counts(self.all_proofs) if self.all_proofs else ""


def report_of(run: Run) -> tuple[list[BuildView], list[tuple[str, int]]]:
    """The builds of a run, failed ones first, and each reason for which cells were skipped, with their number.

    Reads the logs of failed builds. Raises UsageError for a run whose report in the store is damaged.
    """
    try:
        builds = parse_plain(run, lambda one: [_build(one, entry) for entry in one.report["builds"]])
        skips = parse_plain(run, lambda one: Counter(str(skip["reason"]) for skip in one.report["skips"]))
    except JsonError as error:
        hint = "`buildfarm store history` lists the runs; `buildfarm report RUN` shows one of them"
        raise UsageError(
            f"the report in the store is damaged: {error}", Code.FILE_INVALID, where=run.id, hints=[hint]
        ) from None
    builds.sort(key=lambda build: (ORDER.index(build.result), build.build))
    return builds, sorted(skips.items(), key=lambda item: (-item[1], item[0]))


def _build(run: Run, entry: Mapping[str, Any]) -> BuildView:
    name, has_wheel = str(entry["build"]), "wheel" in entry
    proofs = proofs_of(entry.get("proofs", []))
    result, timeline = run.result(entry), run.timeline or Timeline()
    log, error = run.logs.get(name, ""), str(entry["error"] or "").removeprefix(f"{name}: ")
    own = [one for one in timeline.stages if one.build.partition(" in ")[0] == name]
    objects = (entry.get("record") or {}).get("objects") or {}
    steps = objects.get("reused", 0) + objects.get("compiled", 0)
    return BuildView(
        build=name,
        result=result,
        seconds=round(max(s.end for s in own) - min(s.start for s in own), 2) if own else 0,
        wheel=str(entry["wheel"]) if has_wheel else None,
        size=int(entry.get("size", 0)) or None,
        objects={"reused": objects.get("reused", 0), "all": steps} if steps and result != REUSED else None,
        error=error or None,
        hints=tuple(map(str, entry["hints"])),
        proofs=tuple(proof for proof in proofs if proof.cell is None),
        cells=tuple(_cell(cell, proofs) for cell in map(str, entry["serves"])),
        log=log,
        log_end=last_lines(text_since(Path(log), 0).splitlines()) if log else (),
    )


def _cell(cell: str, proofs: Sequence[Proof]) -> CellView:
    about = tuple(proof for proof in proofs if str(proof.cell) == cell)
    failed = any(proof.verdict is Verdict.FAILED for proof in about)
    level = "failed" if failed else levels(proofs).get(cell, "none") if proofs else "not built"
    return CellView(cell, level, proven_on(about).get(cell, ()), about)


def seconds_text(seconds: float) -> str:
    """`4.2 s` below one minute, else `2:03`; empty for nothing."""
    if not seconds:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{clock(seconds)} min" if seconds < 3600 else f"{clock(seconds)} h"


def causes_of_report(builds: Iterable[BuildView]) -> Causes:
    """Why checks of builds failed, did not run, are accepted or are remarked on."""
    return causes_of(each for build in builds for each in findings(build.all_proofs, build.build))
