"""Options that several commands have, and what their values mean."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from builder import SAVED
from builder.errors import Code, UsageError
from builder.matrix.axes import Arch
from builder.matrix.config import Selection
from builder.matrix.plan import Build
from builder.option import option
from builder.resources import own_gpus

#: What `add` and `build` take as SOURCE.
SOURCE = (
    "NAME==VERSION or NAME on the package index; URL of a git repository, optionally with @BRANCH, @TAG or"
    " @COMMIT and #subdirectory=DIR; or a folder."
)


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The options of a command that reads the store, such as `buildfarm store history`."""

    store: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(StoreOptions):
    """The options of a command that builds or checks wheels."""

    saved: Path | None = option(
        "Use no network: packages, Pythons, sources and images come from this folder, which `buildfarm store save`"
        " wrote.",
        "DIR",
        "--from",
        envvar=SAVED,
    )
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """The options that select cells."""

    torch: list[str] | None = None
    cuda: list[str] | None = None
    python: list[str] | None = None

    @property
    def select(self) -> Selection:
        """What the options select."""
        return Selection(tuple(self.torch or ()), tuple(self.cuda or ()), tuple(self.python or ()))


@dataclass(frozen=True, kw_only=True)
class SelectOptions(CellOptions):
    """The options that select cells and extensions."""

    ext: list[str] | None = None

    @property
    def select(self) -> Selection:
        """What the options select."""
        return replace(super().select, extensions=tuple(self.ext or ()))


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


def architectures_hint(builds: Collection[Build]) -> str:
    """The number of GPU architectures and how to compile for fewer; empty if each build is for one."""
    counts = {len(build.archs) for build in builds}
    if max(counts, default=1) == 1:
        return ""
    number = f"{'up to ' if len(counts) > 1 else ''}{max(counts)} GPU architectures"
    unread = " TORCH_CUDA_ARCH_LIST is not read." if "TORCH_CUDA_ARCH_LIST" in os.environ else ""
    return (
        f"Each wheel is compiled for {number}. To save time, add `--arch 9.0`, or `--arch native` for your own"
        f" GPU.{unread}"
    )


def check_driver(version: str) -> None:
    """Raise UsageError for a `--driver` that is no version; empty: none is named."""
    if version and not re.fullmatch(r"\d+(?:\.\d+)*", version):
        raise UsageError(
            f"{version!r} is not a driver version; write it like 550 or 550.54.14", Code.VALUE_INVALID, where="--driver"
        )
