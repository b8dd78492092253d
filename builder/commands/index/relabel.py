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
    out: Path = option("The folder that gets the new wheel.", "DIR", default=Path("relabelled"))


def relabel(options: RelabelOptions) -> None:
    """Write a wheel whose file name, METADATA and WHEEL agree, such as after somebody renamed the file.

    The project, the version and the tags are those of the file name: for other ones, rename the file first.

    Examples:
        buildfarm relabel flash_attn-2.8+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl
    """
    print_data(f"{relabel_wheel(options.wheel, options.out)}\n")
