"""One build from its prepared source to a finished wheel: compile, repair. `build` and `rebuild` share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from builder.build_log import log_size, text_since
from builder.diagnosis.setup_script import read_setup_script
from builder.formats import BUILD_FORMAT
from builder.log import print_warning
from builder.records import BuildRecord, Record
from builder.wheels.failures import left_out_extensions, no_library_hints
from builder.wheels.job import CompileJob, Executor, required_torch
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


def make_wheel(
    job: CompileJob, source: str, executor: Executor, stage: Callable[[str], None], *, minor_mismatch: bool = False
) -> tuple[Path, BuildRecord]:
    """Make the wheel in `job.work` from `job.source`, whose digest is `source`; returns it with the store's record.

    Raises BuildError.
    """
    started, clock = datetime.now(UTC).replace(microsecond=0), time.monotonic()
    record = Record.of(job.build, job.recipe, job.toolchain, source, minor_mismatch=minor_mismatch)
    if unmet := unmet_requirements(job.source, job.toolchain.packages):
        print_warning(
            f"{job.recipe.name}: `build-system.requires` of the source asks for {', '.join(unmet)}, which buildfarm"
            " does not install; if the build fails, add these requirements to `build_requires` in extension.yaml"
        )
    script, target = read_setup_script(job.source), check_target(job)
    cuda, start = find_cuda_sources(job.source, job.recipe), log_size(job.log)
    compiled = executor.compile(job, stage)
    check_identity(compiled.wheel, job)
    output = text_since(job.log, start)
    check_compiled(compiled.wheel, job, script, output)
    left_out = left_out_extensions(job, output.splitlines())
    for sentence in left_out:
        print_warning(f"{job.recipe.name}: {sentence}")
    if unused := unused_excludes(compiled.wheel, job.recipe):
        print_warning(f"{job.recipe.name}: `wheel_exclude` matches no file of the wheel: {', '.join(unused)}")
    stage("repair")
    wheel = repair(
        compiled.wheel,
        job.work / "wheel",
        provided=compiled.libraries,
        local_version=job.build.local_version,
        torch_requirement=required_torch(job.build, job.recipe, needed_torch(compiled.wheel, job.build, target)),
        built_with=str(job.build.torch),
        requires=job.recipe.requires,
        exclude=job.recipe.wheel_exclude,
        record=record,
        no_library_hints=[*left_out, *no_library_hints(script, job.recipe)],
        log=job.log,
        owner=job.owner,
    )
    return wheel, BuildRecord(
        record=record,
        provided=compiled.libraries,
        jobs=job.jobs,
        objects=compiled.objects,
        cuda=without_compiled(cuda, output),
        format=BUILD_FORMAT,
        started=started,
        seconds=round(time.monotonic() - clock, 1),
    )
