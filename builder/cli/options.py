"""The options and arguments of the command line, with their help texts; what they select."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from builder.errors import Code, UsageError
from builder.matrix.axes import Arch
from builder.matrix.config import Selection
from builder.resources import own_gpus


class SmokeExecutor(StrEnum):
    """Where `smoke` runs the ops of a wheel."""

    LOCAL = "local"
    DOCKER = "docker"


class ExecutorName(StrEnum):
    """Where `build` compiles."""

    AUTO = "auto"
    LOCAL = "local"
    DOCKER = "docker"


TorchOption = Annotated[
    list[str] | None,
    typer.Option("--torch", metavar="VERSION", help="PyTorch release or series: 2.11.0 or 2.11. Repeatable."),
]
CudaOption = Annotated[
    list[str] | None, typer.Option("--cuda", metavar="VERSION", help="CUDA version: 13.0 or cu130. Repeatable.")
]
PythonOption = Annotated[
    list[str] | None, typer.Option("--python", metavar="VERSION", help="Python version: 3.12 or cp312. Repeatable.")
]
ExtOption = Annotated[
    list[str] | None, typer.Option("--ext", metavar="NAME", help="Extension, by the name in its recipe. Repeatable.")
]
ArchOption = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        metavar="ARCH",
        help="GPU architecture: 9.0 or 9.0+PTX; native: those of this machine's GPUs. Repeatable. In place of `archs`"
        " of matrix.yaml and the recipes. Default without `archs`: those of torch's own wheel.",
    ),
]
#: What `add` and `build` take as SOURCE.
SOURCE = (
    "NAME==VERSION or NAME on the package index; URL of a git repository, optionally with @BRANCH, @TAG or"
    " @COMMIT and #subdirectory=DIR; or a folder."
)
MatrixOption = Annotated[
    Path, typer.Option("--matrix", metavar="FILE", help="The file that lists torch, CUDA, Python and the extensions.")
]
WheelMatrixOption = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="The file that lists torch, CUDA, Python and the extensions. Default: matrix.yaml if there is one.",
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Folder for finished builds, proofs and environments. Default: BUILDFARM_STORE, else ~/.cache/buildfarm.",
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="Base image for all cells. It replaces the default image, and `image` in every entry of `images`.",
    ),
]
NoPullOption = Annotated[
    bool,
    typer.Option("--no-pull", help="Use only base images that are on this machine; pull none from a registry."),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", min=1, help="Number of parallel compilers. Default: as many as cores and memory allow."
    ),
]
#: Of commands that delete.
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress to stderr, only warnings and errors.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print every line of the programs that run, and every reason in full.")
]

NoPythonDownloadsOption = Annotated[
    bool,
    typer.Option(
        "--no-python-downloads",
        help="Do not download Pythons that this machine lacks. Same as UV_PYTHON_DOWNLOADS=never.",
    ),
]
DistOption = Annotated[
    Path, typer.Option("--dist", metavar="DIR", help="Folder for the wheels, report.json and the index.")
]
IndexOption = Annotated[
    str,
    typer.Option(
        "--index", metavar="DIR|URL", help="Package index to ask first for NAME==VERSION: its URL, or its folder."
    ),
]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Also write the results to FILE as JUnit XML.")
]
SummaryOption = Annotated[
    Path | None,
    typer.Option(
        "--summary",
        metavar="FILE",
        help="Also append the report of the run to FILE as Markdown, for example to $GITHUB_STEP_SUMMARY.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The options of a command that reads the store, such as `buildfarm store history`."""

    store: StoreOption = None
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """The options that select cells."""

    torch: TorchOption = None
    cuda: CudaOption = None
    python: PythonOption = None

    @property
    def select(self) -> Selection:
        """What the options select."""
        return Selection(tuple(self.torch or ()), tuple(self.cuda or ()), tuple(self.python or ()))


@dataclass(frozen=True, kw_only=True)
class SelectOptions(CellOptions):
    """The options that select cells and extensions."""

    ext: ExtOption = None

    @property
    def select(self) -> Selection:
        """What the options select."""
        return replace(super().select, extensions=tuple(self.ext or ()))


@dataclass(frozen=True, kw_only=True)
class NewMatrixOptions(CellOptions):
    """The options that choose what a new matrix.yaml lists."""

    arch: ArchOption = None


def architectures(arch: list[str] | None) -> tuple[Arch, ...]:
    """Parse GPU architectures; values may be separated by commas, semicolons or spaces. Raises UsageError.

    `native` becomes the architectures of this machine's GPUs.
    """
    texts = [part for text in arch or () for part in re.split(r"[,;\s]+", text) if part]
    if arch and not texts:
        raise UsageError(
            "no GPU architecture is given; write one such as 9.0 or 9.0+PTX", Code.COMMAND_LINE_INVALID, where="--arch"
        )
    native = own_gpus() if "native" in texts else []
    if "native" in texts and not native:
        raise UsageError(
            "`native` needs a GPU, but nvidia-smi finds no GPU on this machine",
            Code.NO_GPU,
            where="--arch",
            hints=[
                "name the architecture of the GPU that the wheel is for, such as `--arch 9.0`",
                "`nvidia-smi --query-gpu=compute_cap --format=csv` must print a version such as 9.0 for each GPU",
            ],
        )
    try:
        return tuple(sorted({*native, *(Arch.parse(text) for text in texts if text != "native")}))
    except UsageError as error:
        raise UsageError(error.sentence, error.code, where="--arch", hints=error.hints) from None
