"""`buildfarm relabel`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.output import print_data
from builder.wheels.repair.relabel import relabel_wheel


@dataclass(frozen=True, kw_only=True)
class RelabelOptions:
    """The options of `buildfarm relabel`."""

    wheel: Annotated[Path, typer.Argument(metavar="WHEEL", help="The wheel file. It is not changed.")]
    version: Annotated[str, typer.Option("--version", metavar="V", help="Default: the version in the file name.")] = ""
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Default: the project in the file name.")] = ""
    tag: Annotated[
        str,
        typer.Option(
            "--tag", metavar="TAG", help="Such as cp312-cp312-manylinux_2_28_x86_64. Default: that of the file name."
        ),
    ] = ""
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder that gets the new wheel.")] = Path(
        "relabelled"
    )


def relabel(options: RelabelOptions) -> None:
    """Write a wheel whose file name, METADATA and WHEEL agree, such as after somebody renamed the file.

    Examples:
        buildfarm relabel flash_attn-2.8+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl
        buildfarm relabel NAME.whl --version 1.0+cu130 --out wheels
    """
    made = relabel_wheel(options.wheel, options.out, name=options.name, version=options.version, tag=options.tag)
    print_data(f"{made}\n")
