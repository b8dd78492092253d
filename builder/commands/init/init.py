"""`buildfarm init`: write a small extension, or one around the CUDA file in the folder, with recipe and matrix.yaml."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.commands.axes import new_axes
from builder.errors import UsageError
from builder.matrix.axes import Arch
from builder.matrix.config import Selection
from builder.recipes.matrix_file import NewAxes, create_matrix
from builder.recipes.new_extension import NewExtension, small_extension, wrapped_extension

_MATRIX = "matrix.yaml"


@dataclass(frozen=True)
class InitOptions:
    """The options of one `buildfarm init`.

    Attributes:
        folder: the folder of the project; it is created if it does not exist.
        name: name of the extension, or None for the name of the CUDA file or of the folder.
        select: the versions in matrix.yaml.
        archs: GPU architectures in matrix.yaml; without any, it has no key `archs`.

    """

    folder: Path = Path()
    name: str | None = None
    select: Selection = field(default_factory=Selection)
    archs: tuple[Arch, ...] = ()


@dataclass(frozen=True)
class Started:
    """What `init` wrote: the extension, and the versions in matrix.yaml."""

    extension: NewExtension
    axes: NewAxes


def run_init(options: InitOptions) -> Started:
    """Write the files of a new project. Raises UsageError before it writes anything; no file is replaced."""
    folder = options.folder
    axes = replace(new_axes(options.select), archs=options.archs)
    source = _cuda_file(folder)
    name = _name(options.name or (source.stem if source else folder.resolve().name), given=options.name is not None)
    if source:
        extension = wrapped_extension(name, source.name, source.read_text(encoding="utf-8", errors="replace"))
    else:
        extension = small_extension(name)
    files = {path: text for path, text in extension.files.items() if path != ".gitignore" or not _exists(folder, path)}
    if taken := [path for path in (*files, _MATRIX) if _exists(folder, path)]:
        raise UsageError(
            f"the folder already has {taken[0]}; `buildfarm init` does not overwrite files",
            where=str(folder.resolve()),
            hints=[
                "the folder is a project of buildfarm: run `buildfarm build`"
                if _exists(folder, "extension.yaml") and _exists(folder, _MATRIX)
                else "for a source with a setup.py, run `buildfarm add .`",
                "for another project, run `buildfarm init NEWFOLDER`",
            ],
        )
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    create_matrix(folder / _MATRIX, ".", axes)
    return Started(replace(extension, files=files), axes)


def _exists(folder: Path, path: str) -> bool:
    return (folder / path).exists()


def _cuda_file(folder: Path) -> Path | None:
    """The only CUDA file of the folder, or None. Raises UsageError if there are several."""
    found = sorted(folder.glob("*.cu"))
    if len(found) > 1:
        raise UsageError(
            f"the folder has {len(found)} .cu files; `buildfarm init` makes an extension from one file",
            where=str(folder.resolve()),
            hints=["write a setup.py that compiles them, and run `buildfarm add .`"],
        )
    return found[0] if found else None


def _name(text: str, *, given: bool) -> str:
    """The name as a Python module. Raises UsageError if the user gave a name that is none."""
    name = text if given else re.sub(r"\W+", "_", text).strip("_").lower()
    known = keyword.iskeyword(name) or name in sys.stdlib_module_names or name == "torch"
    if known or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise UsageError(
            f"{text!r} cannot be the name of a Python package",
            hints=["pass `--name NAME`, with lower-case letters, digits and _ only"],
        )
    return name
