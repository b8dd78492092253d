"""`buildfarm init`: write a small extension, or one around the CUDA files of the folder, with a recipe."""

import keyword
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rich.markup import escape

from builder.cli.options import CellOptions, architectures
from builder.commands.axes import new_axes
from builder.errors import Code, UsageError
from builder.log import print_data
from builder.matrix.config import Matrix
from builder.option import argument, option
from builder.publish.terminal import to_text
from builder.recipes.new_extension import NewExtension, small_extension, wrapped_extension
from builder.recipes.project_files import axes_text, create_matrix

_MATRIX = "matrix.yaml"


@dataclass(frozen=True, kw_only=True)
class InitOptions(CellOptions):
    """The options of `buildfarm init`."""

    arch: list[str] | None = None
    folder: Path = argument("Folder of the project. It is created if it does not exist.", "DIR", default=Path())
    name: str | None = option(
        "Name of the extension. Default: that of the .cu file; of several files the one with which all names "
        "begin, such as op for op.cpp and op_kernel.cu; else of the folder.",
        "NAME",
    )


def init(options: InitOptions) -> None:
    """Start a project with a small example extension, or with the .cu and .cpp files of the folder.

    The new matrix.yaml lists what --torch, --cuda, --python and --arch name. Otherwise it lists the newest torch that
    fits, the CUDA of its wheel on the package index, and the Python that runs buildfarm, and no `archs`.

    Examples:
        buildfarm init my_project
        buildfarm init --torch 2.11 --cuda 13.0 --python 3.12 --arch 9.0
    """
    extension, axes = run_init(options)
    print_data(started_text(options.folder, extension, axes))


def run_init(options: InitOptions) -> tuple[NewExtension, Matrix]:
    """Write the files of a new project; return the extension, and the versions in matrix.yaml.

    Raises UsageError before it writes anything; no file is replaced.
    """
    folder = options.folder
    if folder.is_file():
        raise UsageError("this is a file, not a folder", Code.PATH_NOT_USABLE, where=str(folder))
    axes = new_axes(options.select, architectures(options.arch))
    found = [path for ending in ("*.cpp", "*.cc", "*.cxx", "*.cu") for path in sorted(folder.glob(ending))]
    cuda = any(path.suffix == ".cu" for path in found)
    sources = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in found if cuda}
    stems = [Path(name).stem for name in sources]
    # The only file, or that of several after which the others are named.
    first = next((stem for stem in stems if all(other.startswith(stem) for other in stems)), folder.resolve().name)
    name = _name(options.name or first, given=options.name is not None)
    extension = wrapped_extension(name, sources) if sources else small_extension(name)
    files = dict(extension.files)
    if (folder / ".gitignore").exists():
        files.pop(".gitignore", None)
    if taken := [path for path in (*files, _MATRIX) if (folder / path).exists()]:
        raise UsageError(
            f"the folder already has {taken[0]}; `buildfarm init` does not overwrite files",
            Code.ALREADY_EXISTS,
            where=str(folder.resolve()),
            hints=[
                "the folder is a project of buildfarm: run `buildfarm build` in it"
                if (folder / "extension.yaml").exists() and (folder / _MATRIX).exists()
                else f"for a source with a setup.py, run `buildfarm add {shlex.quote(str(folder))}`",
                "for another project, run `buildfarm init NEWFOLDER`",
            ],
        )
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    create_matrix(folder / _MATRIX, ".", axes)
    return replace(extension, files=files), axes


def _name(text: str, *, given: bool) -> str:
    """The name as a Python module. Raises UsageError if the user gave a name that is none."""
    name = text if given else re.sub(r"\W+", "_", text).strip("_").lower()
    taken = keyword.iskeyword(name) or name in sys.stdlib_module_names or name == "torch"
    if taken or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        rule = "lower-case letters, digits and _, no keyword and no module of Python or torch"
        hints = [f"pass `--name NAME`: {rule}"]
        raise UsageError(f"{text!r} cannot be the name of a Python package", Code.VALUE_INVALID, hints=hints)
    return name


def started_text(folder: Path, extension: NewExtension, axes: Matrix) -> str:
    """The text after `init`."""
    lines = [f"[bold]{extension.name}[/]", *(f"  {escape(note)}" for note in extension.notes)]
    lines += [f"wrote {escape(str(folder / path))}" for path in extension.files]
    lines += [f"wrote {escape(str(folder / 'matrix.yaml'))}: {axes_text(axes)}", ""]
    if extension.gaps:
        lines += [
            "Before the build, check these files. The extension compiles without a change:",
            *(f"  {escape(gap)}" for gap in extension.gaps),
        ]
        lines += ["If you change one of these files after the build, buildfarm compiles the extension again.", ""]
    lines.append("To compile and test the extension:")
    if folder != Path():
        lines.append(f"  cd {escape(shlex.quote(str(folder)))}")
    lines.append("  buildfarm build")
    if not axes.archs:
        lines.append("  buildfarm build --arch 9.0    (one GPU architecture compiles faster)")
    if "cases.py" not in extension.files:
        lines += ["", "After the build, draft a cases.py with a case for each op:", "  buildfarm cases"]
    return to_text(*lines)
