"""`buildfarm add`."""

from __future__ import annotations

from builder.cli.init import NewArchOption
from builder.cli.options import (
    JsonOption,
    MatrixOption,
    NewCudaOption,
    NewPythonOption,
    NewTorchOption,
    SourceArgument,
    StoreOption,
    architectures,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.log import print_warning
from builder.matrix.config import MATRIX

EXAMPLES = examples(
    "buildfarm add torch-scatter==2.1.2",
    "buildfarm add https://github.com/rusty1s/pytorch_cluster@1.6.3 --torch 2.11 --cuda 13.0",
    "buildfarm add ./my_extension",
)


def add(
    source: SourceArgument,
    torch: NewTorchOption = None,
    cuda: NewCudaOption = None,
    python: NewPythonOption = None,
    arch: NewArchOption = None,
    matrix: MatrixOption = MATRIX,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a recipe for a source and add it to matrix.yaml.

    Runs no code of the source if its files state name and version. Otherwise it asks the build backend for them.
    """
    from builder.commands.add.add import AddOptions, run_add  # noqa: PLC0415 - loads slowly
    from builder.recipes.added import added_json, added_text, next_steps  # noqa: PLC0415

    if matrix.exists() and (torch or cuda or python or arch):
        print_warning(f"--torch, --cuda, --python and --arch have no effect, because {matrix} exists: edit this file")
    archs = architectures(arch)
    added = run_add(AddOptions(source, matrix, selection(torch, cuda, python, None), store, archs))
    print_data(added_json(added) if as_json else added_text(added) + next_steps(added))
