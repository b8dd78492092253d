"""What the report of runs shows, as data: runs, builds with their cells and proofs, and coverage."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from builder.errors import BuildfarmError, Code, UsageError
from builder.gate.amounts import counted, size_text
from builder.gate.causes import Causes, causes_of
from builder.matrix.axes import Cell
from builder.progress.display import clock
from builder.proof import Proof, Verdict
from builder.publish.gpu_models import proven_on
from builder.publish.index.levels import levels
from builder.publish.people.coverage import Field, Grid, grid_of
from builder.publish.proof_lines import counts, findings
from builder.storage.runs import FAILED, NOT_FINISHED, ORDER, REFUSED, REUSED, Run
from builder.timeline import Timeline, Use
from builder.untrusted import JsonError, parse_plain, without_escapes

# Text from logs, wheels and the command line without anything that a terminal or a browser would obey.

#: Control characters, and those that change the direction of text or cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
#: Characters of one line that are shown.
LONGEST_LINE = 400


def plain(text: str, longest: int = LONGEST_LINE) -> str:
    """Lines without escape sequences; other control characters are shown as U+FFFD, and long lines are cut.

    Of a line that a program wrote over with carriage returns, the last state is kept.
    """
    return "\n".join(_line(line, longest) for line in text.replace("\r\n", "\n").split("\n"))


def _line(line: str, longest: int) -> str:
    written = without_escapes(line).rstrip("\r").rpartition("\r")[2]
    safe = _UNSAFE.sub("\ufffd", written)
    return safe if len(safe) <= longest else f"{safe[:longest]} … ({len(safe) - longest} more characters)"


# The parts of a log that show why a build failed: the first error with the lines around it, and the end.

#: How many lines are shown before and after the first error, and of the end of the log.
BEFORE, AFTER, TAIL = 2, 12, 25
#: Bytes of one line that are read.
_LINE_BYTES = 4000
_ERROR = re.compile(r"(?i)(?:^|\W)(?:error|fatal|failed|exception|undefined reference to)\b")
#: What `FirstError` appends to a line of the log.
_APPENDED = re.compile(r"…?(?: \(\d+ errors in all\))?$")


@dataclass(frozen=True)
class Excerpt:
    """Parts of a log, as safe text."""

    #: Path of the complete log.
    log: str
    #: Number of the first line of `error`; lines count from 1.
    first: int
    #: The first error and the lines around it; empty if the log names none.
    error: tuple[str, ...]
    #: Index of the first error in `error`.
    here: int
    #: Number of the first line of `tail`.
    tail_first: int
    #: The last lines.
    tail: tuple[str, ...]


def read_excerpt(log: Path, sentence: str) -> Excerpt | None:
    """The excerpt of a log, or None if the log cannot be read.

    `sentence` is the error that buildfarm reported; without one, the excerpt has no first error.
    """
    with suppress(OSError):
        found = _error_line(log, sentence) if sentence else 0
        first = max(found - BEFORE, 1)
        error: tuple[str, ...] = ()
        tail: deque[str] = deque(maxlen=TAIL)
        count = 0
        for count, line in enumerate(_lines(log), start=1):  # noqa: B007 - the number of lines
            tail.append(line)
        if found:
            error = tuple(plain(line) for line in islice(_lines(log), first - 1, found + AFTER))
        return Excerpt(str(log), first, error, found - first, count - len(tail) + 1, tuple(map(plain, tail)))
    return None


def _error_line(log: Path, sentence: str) -> int:
    """Number of the line that the reported error comes from, else of the first line that names an error, else 0."""
    wanted = _APPENDED.sub("", sentence)
    named = 0
    for number, line in enumerate(_lines(log), start=1):
        text = line.strip()
        if len(text) > 8 and not text.startswith("+ "):
            # The sentence has the path in the source where the log has an absolute path, and it may be cut at its end.
            if text in wanted or (len(wanted) > 8 and wanted in text):
                return number
            if not named and _ERROR.search(text):
                named = number
    return named


def _lines(log: Path) -> Iterator[str]:
    with log.open("rb") as stream:
        while line := stream.readline(_LINE_BYTES):
            while not line.endswith(b"\n") and (rest := stream.readline(1 << 20)):  # skip the end of a long line
                line += b"\n" if rest.endswith(b"\n") else b""
            yield line.decode(errors="replace").rstrip("\n")


@dataclass(frozen=True)
class CellView:
    """One cell of one build."""

    #: Its name.
    cell: str
    #: `gpu`, `cpu`, `static`, `none` or `failed` by the proofs; `not built` without a wheel.
    level: str
    #: Time of its checks in this run; 0 if none ran.
    seconds: float
    #: Memory and processor time of its checks; None if not measured.
    use: Use | None
    #: The checks.
    proofs: tuple[Proof, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPU models on which every op was checked."""
        return proven_on(self.proofs).get(self.cell, ())


@dataclass(frozen=True)
class BuildView:
    """One build of one run."""

    #: Of the build, or the file name of a tested wheel.
    name: str
    #: extension, version: what it is a build of; the version is empty in the record of an older buildfarm.
    extension: str
    version: str
    #: Id of the run.
    run: str
    #: One of ORDER.
    result: str
    #: From its start to its end in this run; 0 if unknown.
    seconds: float = 0
    #: Each stage with its seconds, in order; stages of cells are in `cells`.
    stages: tuple[tuple[str, float], ...] = ()
    #: Memory and processor time of the programs that made the wheel; None if not measured.
    use: Use | None = None
    #: File name of the wheel, or empty.
    wheel: str = ""
    #: Of the wheel in bytes.
    size: int = 0
    #: Compile steps that the compiler cache saved, and all steps; None without a compile or a compiler cache.
    cached: tuple[int, int] | None = None
    #: Why it failed, or empty.
    error: str = ""
    #: The code of the error; empty without an error, and in the record of an older buildfarm.
    code: str = ""
    #: What to do.
    hints: tuple[str, ...] = ()
    #: Checks of the file.
    proofs: tuple[Proof, ...] = ()
    #: Its cells.
    cells: tuple[CellView, ...] = ()
    #: Of the log of a failed build.
    excerpt: Excerpt | None = None

    @property
    def bad(self) -> bool:
        """Whether it has no good wheel."""
        return self.result in (FAILED, REFUSED, NOT_FINISHED)

    @property
    def all_proofs(self) -> tuple[Proof, ...]:
        """The checks of the file and of each cell."""
        return (*self.proofs, *(proof for cell in self.cells for proof in cell.proofs))


@dataclass(frozen=True)
class Report:
    """The report of one run, or of several: then with the newest result of each build.

    `skips` are reasons, each with the number of cells that the run skipped for it.
    """

    runs: tuple[Run, ...]
    builds: tuple[BuildView, ...]
    skips: tuple[tuple[str, int], ...]


def report_of(runs: Sequence[Run]) -> Report:
    """The report of runs, of which the newest is the first. Reads the logs of failed builds.

    Raises UsageError for a run whose report in the store is damaged.
    """
    newest: dict[str, BuildView] = {}
    skips: Mapping[str, int] = {}
    for run in runs:
        try:
            builds, skipped = parse_plain(run, lambda run: (_builds(run), _skips(run)))
        except JsonError as error:
            hint = "`buildfarm store history` lists the runs; `buildfarm report RUN` shows one of them"
            raise UsageError(
                f"the report in the store is damaged: {error}", Code.REPORT_DAMAGED, where=run.id, hints=[hint]
            ) from None
        for build in builds:
            newest.setdefault(build.name, build)
        skips = skips or skipped
    ordered = sorted(newest.values(), key=lambda build: (ORDER.index(build.result), build.name))
    return Report(tuple(runs), tuple(ordered), tuple(sorted(skips.items(), key=lambda item: (-item[1], item[0]))))


def _skips(run: Run) -> Mapping[str, int]:
    return Counter(str(skip["reason"]) for skip in run.report["skips"])


def _builds(run: Run) -> list[BuildView]:
    found = [_build(run, entry) for entry in run.report["builds"]]
    return found + [BuildView(name, name, "", run.id, NOT_FINISHED) for name in run.unfinished]


def _build(run: Run, entry: Mapping[str, Any]) -> BuildView:
    name, has_wheel = str(entry["build"]), "wheel" in entry
    proofs = tuple(_proofs(entry.get("proofs", ())))
    refused = any(proof.verdict is Verdict.FAILED for proof in proofs)
    result = run.result(entry)
    timeline = run.timeline or Timeline()
    log, error = run.logs.get(name), str(entry["error"] or "").removeprefix(f"{name}: ")
    about_file = tuple(proof for proof in proofs if proof.cell is None)
    return BuildView(
        name=name,
        extension=str(entry.get("extension", name)),
        version=str(entry.get("version", "")),
        run=run.id,
        result=result,
        seconds=_span(timeline, name),
        stages=tuple(_stages(timeline, name)),
        use=timeline.uses.get(name),
        wheel=str(entry.get("wheel", "")),
        size=int(entry.get("size", 0)),
        cached=None if result == REUSED else _cached(entry),
        error=error,
        code=str(entry.get("code") or ""),
        hints=tuple(map(str, entry["hints"])),
        proofs=about_file,
        cells=tuple(_cells(name, entry, proofs, timeline)),
        excerpt=read_excerpt(Path(log), "" if refused or has_wheel else error) if log else None,
    )


def _proofs(entries: Sequence[dict[str, Any]]) -> list[Proof]:
    """The proofs of an entry; those with a check that this buildfarm does not know are left out."""
    found = []
    for entry in entries:
        try:
            found.append(Proof.from_json(entry))
        except (KeyError, ValueError, TypeError, BuildfarmError):
            continue
    return found


def _cells(name: str, entry: Mapping[str, Any], proofs: Sequence[Proof], timeline: Timeline) -> list[CellView]:
    reached = levels(proofs)
    found = []
    for cell in map(str, entry["serves"]):
        about = tuple(proof for proof in proofs if str(proof.cell) == cell)
        failed = any(proof.verdict is Verdict.FAILED for proof in about)
        level = "failed" if failed else reached.get(cell, "none") if proofs else "not built"
        key = f"{name} in {cell}"
        seconds = sum(
            stage.end - stage.start
            for stage in timeline.stages
            if stage.build == key
            or stage.build.startswith(f"{key} on ")
            or (stage.build == name and stage.stage.endswith(f" in {cell}"))
        )
        found.append(CellView(cell, level, seconds, timeline.uses.get(key), about))
    return found


def _stages(timeline: Timeline, name: str) -> list[tuple[str, float]]:
    return [
        (stage.stage, stage.end - stage.start)
        for stage in timeline.stages
        if stage.build == name and " in torch" not in stage.stage
    ]


def _span(timeline: Timeline, name: str) -> float:
    """Seconds from the first stage of a build to the end of its last; of a tested wheel, of its cells together."""
    own = [stage for stage in timeline.stages if stage.build == name]
    if own:
        return max(stage.end for stage in own) - min(stage.start for stage in own)
    return sum(stage.end - stage.start for stage in timeline.stages if stage.build.startswith(f"{name} in "))


def _cached(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    """Compile steps that the compiler cache saved, and all steps."""
    objects = (entry.get("record") or {}).get("objects") or {}
    reused, compiled = objects.get("reused", 0), objects.get("compiled", 0)
    return (reused, reused + compiled) if reused or compiled else None


def grids(builds: Sequence[BuildView]) -> list[tuple[str, Grid]]:
    """The table of cells of each version of each extension, with the name and the version."""
    by_version: dict[tuple[str, str], dict[Cell, Field]] = {}
    for build in builds:
        found = by_version.setdefault((build.extension, build.version), {})
        for view in build.cells:
            found.setdefault(Cell.parse(view.cell), Field(view.level, gpus=view.gpus))
    tested = sorted(key for key, cells in by_version.items() if cells)
    return [(" ".join(key).strip(), grid_of(by_version[key], lambda _: Field())) for key in tested]


def title_of(report: Report, name: Callable[[str], str] = plain) -> str:
    """`buildfarm build of NAME: 1 failed, 2 built`; of several runs their number. `name` makes a name harmless."""
    if len(report.runs) == 1:
        run = report.runs[0]
        of = f" of {name(run.extensions)}" if run.extensions else ""
        return f"{' '.join(run.command.split()[:2])}{of}: {run.results}"
    builds = len(report.builds)
    return f"{len(report.runs)} runs of buildfarm, {counted(builds, 'build')}"


def seconds_text(seconds: float) -> str:
    """`4.2 s` below one minute, else `2:03`; empty for nothing."""
    if not seconds:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{clock(seconds)} min" if seconds < 3600 else f"{clock(seconds)} h"


def verdicts_text(build: BuildView) -> str:
    """How many checks of a build have which verdict; empty without checks."""
    return counts(build.all_proofs) if build.all_proofs else ""


def causes_of_report(builds: Iterable[BuildView]) -> Causes:
    """Why checks of builds failed, did not run, are accepted or are remarked on."""
    return causes_of(each for build in builds for each in findings(build.all_proofs, build.name))


def use_text(timeline: Timeline) -> str:
    """The cores and the memory that the run used, as sentences; empty without samples."""
    samples = timeline.samples
    if not samples:
        return ""
    average = sum(sample.cores for sample in samples) / len(samples)
    where = " on the machine that started it" if timeline.machines else ""
    return (
        f"The programs of the run{where} used {average:.1f} of {timeline.cores} cores on average and at most"
        f" {size_text(max(sample.memory for sample in samples))} of memory. All programs of the machine together used"
        f" at most {size_text(max(sample.machine_memory for sample in samples))} of {size_text(timeline.memory)}."
    )
