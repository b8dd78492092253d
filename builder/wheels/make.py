"""One build from its recipe to a finished wheel: source, compile, repair. The same for the farm and for `rebuild`."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.wheels.build import Executor, Job, code_version, torch_window
from builder.wheels.record import Record
from builder.wheels.repair import repair
from builder.wheels.source import prepare_source, source_digest


def make_wheel(
    job: Job, executor: Executor, stage: Callable[[str], None], *, cache: Path, stand_in: bool = False
) -> tuple[Path, dict[str, Any]]:
    """The wheel, in `job.work`, and what the store is to know of it beyond what the wheel says of itself.

    `job.source` is filled here, with what is kept in `cache` or fetched into it. Raises as the steps do: UsageError or
    MissingToolError for the source, BuildError for the rest.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    stage("fetch")
    job.source.mkdir()
    source = source_digest(job.recipe, cache=cache)
    prepare_source(job.recipe, job.source, cache=cache)
    record = Record.of(job.build, job.recipe, job.toolchain, source, stand_in=stand_in)
    raw = executor.compile(job, stage)
    stage("repair")
    provided = executor.libraries(job)
    wheel = repair(
        raw,
        job.work / "wheel",
        provided=provided,
        local_version=job.build.local_version,
        torch_requirement=torch_window(job.build),
        requires=job.recipe.requires,
        record=record,
        log=job.log,
        job=job.mark,
    )
    objects = executor.objects(job)
    seconds = round(time.monotonic() - clock, 1)
    return wheel, record.to_json() | {
        "provided": sorted(provided),
        "jobs": job.jobs,
        "objects": objects.to_json() if objects else None,
        # Not in the wheel: another release of the farm may well make the same bytes.
        "farm": code_version(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": seconds,
    }
