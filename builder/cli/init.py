"""`buildfarm init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    FolderArgument,
    JsonOption,
    NameOption,
    NewCudaOption,
    NewPythonOption,
    NewTorchOption,
    architectures,
    examples,
    selection,
)
from builder.cli.output import print_data

EXAMPLES = examples("buildfarm init my_project", "buildfarm init --torch 2.11 --cuda 13.0 --python 3.12 --arch 9.0")

NewArchOption = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        metavar="ARCH",
        help="GPU architecture that the new matrix.yaml lists in `archs`: 9.0 or 9.0+PTX; native: those of this"
        " machine's GPUs. Repeatable. Default: no `archs`; each build takes those of torch's own wheel.",
    ),
]


def init(
    folder: FolderArgument = Path(),
    name: NameOption = None,
    torch: NewTorchOption = None,
    cuda: NewCudaOption = None,
    python: NewPythonOption = None,
    arch: NewArchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a project with a small example extension, or with the only .cu file of the folder."""
    from builder.commands.init.init import InitOptions, run_init  # noqa: PLC0415 - loads slowly
    from builder.recipes.started import started_json, started_text  # noqa: PLC0415

    started = run_init(InitOptions(folder, name, selection(torch, cuda, python, None), architectures(arch)))
    extension = started.extension
    print_data(started_json(folder, extension) if as_json else started_text(folder, extension, started.axes))
