"""Compile and repair: from a source tree to a finished wheel. `build` and `rebuild` share both steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.formats import BUILD_FORMAT
from builder.process import log_size, text_since
from builder.progress.display import WAITS
from builder.records import BuildRecord, Record
from builder.wheels.failures import CompileFacts, check_source, check_wheel
from builder.wheels.job import Compiled, CompileJob, Prepared, required_torch
from builder.wheels.repair.relabel import Label
from builder.wheels.repair.repair import repair


@dataclass(frozen=True)
class RawWheel:
    """The wheel that a compile made."""

    job: CompileJob
    compiled: Compiled
    facts: CompileFacts
    #: started, clock: when the compile began, for people and as `time.monotonic`.
    started: datetime
    clock: float


def compile_wheel(prepared: Prepared, job: CompileJob, stage: Callable[[str], None]) -> RawWheel:
    """Compile `job.source`, and check that the wheel is the one that the recipe describes; raises BuildError."""
    started, clock, waits = datetime.now(UTC).replace(microsecond=0), time.monotonic(), False
    source, start = check_source(job), log_size(job.log)

    def timed(text: str) -> None:
        nonlocal started, clock, waits
        if waits:  # the compile begins when other processes have ended
            started, clock = datetime.now(UTC).replace(microsecond=0), time.monotonic()
        waits = text.startswith(WAITS)
        stage(text)

    compiled = prepared.compile(job, timed)
    facts = check_wheel(compiled.wheel, job, source, text_since(job.log, start))
    return RawWheel(job, compiled, facts, started, clock)


def repair_wheel(
    raw: RawWheel, source: str, stage: Callable[[str], None], *, minor_mismatch: bool = False
) -> tuple[Path, BuildRecord]:
    """Make the wheel portable, with its record inside; returns it in `job.work`, and the record for the store.

    `source` is the digest of the source, `minor_mismatch` whether the user accepted another minor of the toolkit.
    Raises BuildError.
    """
    stage("repair")
    job, compiled = raw.job, raw.compiled
    record = Record.of(job.build, job.recipe, job.toolchain, source, minor_mismatch=minor_mismatch)
    torch = required_torch(job.build, job.recipe, raw.facts.torch)
    wheel = repair(
        compiled.wheel,
        job.work / "wheel",
        Label(job.build.local_version, torch, job.recipe.requires, str(job.build.torch)),
        provided=compiled.libraries,
        exclude=job.recipe.wheel_exclude,
        record=record,
        no_library_hints=raw.facts.no_library_hints,
        log=job.log,
        owner=job.owner,
    )
    return wheel, BuildRecord(
        record=record,
        provided=compiled.libraries,
        jobs=job.jobs,
        objects=compiled.objects,
        cuda=raw.facts.cuda,
        format=BUILD_FORMAT,
        started=raw.started,
        seconds=round(time.monotonic() - raw.clock, 1),
    )
