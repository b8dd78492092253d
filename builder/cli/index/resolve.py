"""`buildfarm resolve`."""

from __future__ import annotations

from typing import Annotated

import typer

from builder.cli.options import JsonOption, examples
from builder.cli.output import print_data
from builder.errors import Exit
from builder.matrix.config import TORCH_INDEX

EXAMPLES = examples(
    "buildfarm resolve my_ext --index index",
    'buildfarm resolve my_ext --index URL --torch 2.6 --cuda 12.4 --python 3.11 --glibc 2.31 --gpu "RTX 4090"',
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the extension.")]
IndexOption = Annotated[
    str, typer.Option("--index", metavar="DIR|URL", help="The index: its folder, or its URL without `simple/`.")
]
TorchOption = Annotated[str, typer.Option("--torch", metavar="VERSION", help="PyTorch release or series.")]
CudaOption = Annotated[str, typer.Option("--cuda", metavar="VERSION", help="CUDA of this torch: 13.0 or cu130.")]
PythonOption = Annotated[str, typer.Option("--python", metavar="VERSION", help="Python version.")]
GlibcOption = Annotated[str, typer.Option("--glibc", metavar="VERSION", help="glibc of the machine, such as 2.31.")]
GpuOption = Annotated[
    str, typer.Option("--gpu", metavar="GPU", help="Name or compute capability of the GPU: 'RTX 4090' or 8.9.")
]


def resolve(
    name: NameArgument,
    index: IndexOption,
    torch: TorchOption = "",
    cuda: CudaOption = "",
    python: PythonOption = "",
    glibc: GlibcOption = "",
    gpu: GpuOption = "",
    as_json: JsonOption = False,
) -> None:
    """Find the wheel of an index for a machine, and print the commands that install it.

    Without --torch, --cuda and --python, the machine is this one with the current environment. If no wheel fits, the
    reason is printed for each wheel, and the exit code is 1.
    """
    from builder.commands.index.resolve import ResolveOptions, run_resolve  # noqa: PLC0415 - see `build`
    from builder.publish.index.text.resolve_text import resolve_json, resolve_text  # noqa: PLC0415

    found = run_resolve(ResolveOptions(name, index, torch, cuda, python, glibc, gpu, TORCH_INDEX))
    text = resolve_json if as_json else resolve_text
    print_data(text(found.target, found.resolution, found.commands, found.build_command))
    raise typer.Exit(int(Exit.OK if found.resolution.best else Exit.FAILED))
