"""`buildfarm render`: write the Dockerfiles of the images that a selection needs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.cli.options import SelectOptions
from builder.errors import Exit, MissingToolError
from builder.gate.amounts import counted
from builder.images.dockerfiles import bases_of, dockerfiles, unpinned, write_dockerfiles
from builder.images.registry import lock_path, read_lock, read_mirrors
from builder.log import print_data, print_error
from builder.matrix.config import MATRIX
from builder.matrix.load import read_plan
from builder.option import flag, option


@dataclass(frozen=True, kw_only=True)
class RenderOptions(SelectOptions):
    """The options of `buildfarm render`."""

    matrix: Path = MATRIX
    out: Path = option("Folder for the Dockerfiles.", "DIR", default=Path("build/dockerfiles"))
    lock: bool = flag(
        "First ask the registries, through the Docker engine, for the digests of the base images, and write"
        " them to buildfarm.lock."
    )


def render(options: RenderOptions) -> Exit:
    """Write the Dockerfile of every image that the selection needs. Does not need Docker.

    Examples:
        buildfarm render --torch 2.11 --out dockerfiles.out
        buildfarm render --lock
    """
    declared, _, planned = read_plan(options.matrix, options.select)
    pins = lock_path(options.matrix)
    mirrors, problems = read_mirrors(), list[MissingToolError]()
    if options.lock:
        from builder.images.engine import Engine, refresh_lock  # noqa: PLC0415 - loads slowly

        problems = refresh_lock(pins, unpinned(dockerfiles(planned, declared, {}).values()), Engine(mirrors))
    files = dockerfiles(planned, declared, read_lock(pins))
    write_dockerfiles(options.out, files)
    for problem in problems:
        print_error(problem)
    print_data(render_text(options.out, files, pinned=options.lock))
    return max((problem.exit_code for problem in problems), default=Exit.OK)


def render_text(folder: Path, files: Mapping[str, str], *, pinned: bool) -> str:
    """A line for each image with its base image, then the base images that have no digest.

    `pinned` is whether the command has asked the registries for digests.
    """
    width = max(map(len, files))
    # The base image of the last stage; instead of its digest only `(pinned)`.
    bases = {name: re.sub("@.*", " (pinned)", bases_of(text)[-1]) for name, text in files.items()}
    lines = [f"{name:{width}}  {base}" for name, base in bases.items()]
    lines += ["", f"wrote {counted(len(files), 'Dockerfile')} to {folder}"]
    if tags := unpinned(files.values()):
        advice = "" if pinned else "; `buildfarm render --lock` pins them"
        lines += ["", f"base images without a digest ({len(tags)}){advice}:"]
        lines += [f"  {tag}" for tag in tags]
    return "\n".join(lines) + "\n"
