"""Compile and repair: from a source tree to a finished wheel. `build` and `rebuild` share both steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.build_log import log_size, text_since
from builder.diagnosis.setup_script import read_setup_script
from builder.formats import BUILD_FORMAT
from builder.log import print_warning
from builder.matrix.axes import Torch
from builder.records import BuildRecord, CudaSources, Record
from builder.wheels.failures import left_out_extensions, no_library_hints
from builder.wheels.job import Compiled, CompileJob, Prepared, required_torch
from builder.wheels.repair.repair import repair
from builder.wheels.wheel_checks import (
    check_compiled,
    check_identity,
    check_target,
    find_cuda_sources,
    needed_torch,
    unmet_requirements,
    unused_excludes,
    without_compiled,
)


@dataclass(frozen=True)
class RawWheel:
    """The wheel that a compile made, and what the compile showed."""

    job: CompileJob
    compiled: Compiled
    #: The oldest torch that the wheel needs by its libraries and by TORCH_TARGET_VERSION; None: nothing says it.
    torch: Torch | None
    cuda: CudaSources
    #: Why the wheel may have no library.
    no_library_hints: list[str]
    #: started, clock: when the compile began, for people and as `time.monotonic`.
    started: datetime
    clock: float


def compile_wheel(prepared: Prepared, job: CompileJob, stage: Callable[[str], None]) -> RawWheel:
    """Compile `job.source`, and check that the wheel is the one that the recipe describes; raises BuildError."""
    started, clock = datetime.now(UTC).replace(microsecond=0), time.monotonic()
    if unmet := unmet_requirements(job.source, job.toolchain.packages):
        print_warning(
            f"{job.recipe.name}: `build-system.requires` of the source asks for {', '.join(unmet)}, which buildfarm"
            " does not install; if the build fails, add these requirements to `build_requires` in extension.yaml"
        )
    script, target = read_setup_script(job.source), check_target(job)
    cuda, start = find_cuda_sources(job.source, job.recipe), log_size(job.log)
    compiled = prepared.compile(job, stage)
    check_identity(compiled.wheel, job)
    output = text_since(job.log, start)
    check_compiled(compiled.wheel, job, script, output)
    left_out = left_out_extensions(job, output.splitlines())
    for sentence in left_out:
        print_warning(f"{job.recipe.name}: {sentence}")
    if unused := unused_excludes(compiled.wheel, job.recipe):
        print_warning(f"{job.recipe.name}: `wheel_exclude` matches no file of the wheel: {', '.join(unused)}")
    torch, hints = needed_torch(compiled.wheel, job.build, target), no_library_hints(script, job.recipe)
    return RawWheel(job, compiled, torch, without_compiled(cuda, output), [*left_out, *hints], started, clock)


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
    wheel = repair(
        compiled.wheel,
        job.work / "wheel",
        provided=compiled.libraries,
        local_version=job.build.local_version,
        torch_requirement=required_torch(job.build, job.recipe, raw.torch),
        built_with=str(job.build.torch),
        requires=job.recipe.requires,
        exclude=job.recipe.wheel_exclude,
        record=record,
        no_library_hints=raw.no_library_hints,
        log=job.log,
        owner=job.owner,
    )
    return wheel, BuildRecord(
        record=record,
        provided=compiled.libraries,
        jobs=job.jobs,
        objects=compiled.objects,
        cuda=raw.cuda,
        format=BUILD_FORMAT,
        started=raw.started,
        seconds=round(time.monotonic() - raw.clock, 1),
    )
