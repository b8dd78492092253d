"""`buildfarm relabel`."""

from dataclasses import dataclass
from pathlib import Path

from builder.log import print_data
from builder.option import argument, option
from builder.wheels.repair.relabel import relabel_wheel


@dataclass(frozen=True, kw_only=True)
class RelabelOptions:
    """The options of `buildfarm relabel`."""

    wheel: Path = argument("The wheel file. It is not changed.", "WHEEL")
    version: str = option("Default: the version in the file name.", "V", default="")
    name: str = option("Default: the project in the file name.", "NAME", default="")
    tag: str = option("Such as cp312-cp312-manylinux_2_28_x86_64. Default: that of the file name.", "TAG", default="")
    out: Path = option("The folder that gets the new wheel.", "DIR", default=Path("relabelled"))


def relabel(options: RelabelOptions) -> None:
    """Write a wheel whose file name, METADATA and WHEEL agree, such as after somebody renamed the file.

    Examples:
        buildfarm relabel flash_attn-2.8+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl
        buildfarm relabel NAME.whl --version 1.0+cu130 --out wheels
    """
    made = relabel_wheel(options.wheel, options.out, name=options.name, version=options.version, tag=options.tag)
    print_data(f"{made}\n")
