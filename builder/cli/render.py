"""`buildfarm render`."""

from __future__ import annotations

from pathlib import Path

import typer

from builder.cli.options import (
    CudaOption,
    DockerfilesOption,
    ExtOption,
    JsonOption,
    LockOption,
    MatrixOption,
    PythonOption,
    TorchOption,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.errors import Exit
from builder.log import print_error
from builder.matrix.config import MATRIX
from builder.matrix.load import read_plan

EXAMPLES = examples("buildfarm render --torch 2.11 --out dockerfiles.out", "buildfarm render --lock")


def render(
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    matrix: MatrixOption = MATRIX,
    out: DockerfilesOption = Path("build/dockerfiles"),
    lock: LockOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the Dockerfile of every image that the selection needs. Does not need Docker."""
    from builder.images.dockerfiles import dockerfiles, unpinned, write_dockerfiles  # noqa: PLC0415 - jinja2 loads slowly; `plan` does not need it
    from builder.images.registry.lock import lock_path, read_lock, refresh_lock  # noqa: PLC0415
    from builder.images.registry.reference import read_mirrors  # noqa: PLC0415
    from builder.publish.render_text import render_json, render_text  # noqa: PLC0415

    declared, _, planned = read_plan(matrix, selection(torch, cuda, python, ext))
    pins = lock_path(matrix)
    mirrors = read_mirrors(declared.registries)
    problems = refresh_lock(pins, unpinned(dockerfiles(planned, declared, {})), mirrors) if lock else []
    files = dockerfiles(planned, declared, read_lock(pins))
    write_dockerfiles(out, files)
    for problem in problems:
        print_error(problem)
    print_data(render_json(out, files) if as_json else render_text(out, files))
    raise typer.Exit(int(max((problem.exit_code for problem in problems), default=Exit.OK)))
