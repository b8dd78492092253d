"""`buildfarm relabel`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import examples
from builder.cli.output import print_data
from builder.wheels.repair.relabel import relabel_wheel

EXAMPLES = examples(
    "buildfarm relabel flash_attn-2.8+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
    "buildfarm relabel NAME.whl --version 1.0+cu130 --out wheels",
)

WheelArgument = Annotated[Path, typer.Argument(metavar="WHEEL", help="The wheel file. It is not changed.")]
VersionOption = Annotated[str, typer.Option("--version", metavar="V", help="Default: the version in the file name.")]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Default: the project in the file name.")]
TagOption = Annotated[
    str,
    typer.Option(
        "--tag", metavar="TAG", help="Such as cp312-cp312-manylinux_2_28_x86_64. Default: that of the file name."
    ),
]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder that gets the new wheel.")]


def relabel(
    wheel: WheelArgument,
    version: VersionOption = "",
    name: NameOption = "",
    tag: TagOption = "",
    out: OutOption = Path("relabelled"),
) -> None:
    """Write a wheel whose file name, METADATA and WHEEL agree, such as after somebody renamed the file."""
    print_data(f"{relabel_wheel(wheel, out, name=name, version=version, tag=tag)}\n")
