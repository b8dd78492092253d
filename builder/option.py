"""How a command declares its options: as fields of a dataclass, each with the text of its help."""

from dataclasses import MISSING, Field, field
from typing import Any

import typer


def option(help: str, metavar: str = "", *names: str, default: Any = None, **more: Any) -> Any:  # noqa: A002, ANN401
    """Declare an option. Its name is that of the field unless `names` are given; `default=...`: it must be given.

    `more` are arguments of `typer.Option`, such as `min`.
    """
    return _declared(typer.Option(..., *names, metavar=metavar or None, help=help, **more), default)


def flag(help: str, *names: str, **more: Any) -> Any:  # noqa: A002, ANN401
    """Declare an option without a value, which is off by default."""
    return option(help, "", *names, default=False, **more)


def argument(help: str, metavar: str, default: Any = ..., **more: Any) -> Any:  # noqa: A002, ANN401
    """Declare an argument; without a default, it must be given."""
    return _declared(typer.Argument(metavar=metavar, help=help, **more), default)


def _declared(parameter: Any, default: Any) -> Any:  # noqa: ANN401
    return field(default=MISSING if default is ... else default, metadata={"parameter": parameter})


#: Options that several commands have, by the name of the field; another help or name is declared in the command.
SHARED: dict[str, Field[Any]] = {
    "torch": option("PyTorch release or series: 2.11.0 or 2.11. Repeatable.", "VERSION"),
    "cuda": option("CUDA version: 13.0 or cu130. Repeatable.", "VERSION"),
    "python": option("Python version: 3.12 or cp312. Repeatable.", "VERSION"),
    "ext": option("Extension, by the name in its recipe. Repeatable.", "NAME"),
    "arch": option(
        "GPU architecture: 9.0 or 9.0+PTX; native: those of this machine's GPUs. Repeatable. In place of `archs` of"
        " matrix.yaml and the recipes. Default without `archs`: those of torch's own wheel.",
        "ARCH",
    ),
    "matrix": option("The file that lists torch, CUDA, Python and the extensions.", "FILE"),
    "store": option(
        "Folder for finished builds, proofs and environments. Default: BUILDFARM_STORE, else ~/.cache/buildfarm.", "DIR"
    ),
    "jobs": option("Number of parallel compilers. Default: as many as cores and memory allow.", "N", min=1),
    "minor_mismatch": flag(
        "Accept a CUDA toolkit whose minor version differs from the cell's CUDA. The wheel's record names the toolkit.",
        "--allow-cuda-minor-mismatch",
    ),
    "dry_run": flag("Print what would be deleted, and delete nothing."),
    "as_json": flag("Print JSON instead of text.", "--json"),
    "quiet": flag("Print no progress to stderr, only warnings and errors.", "--quiet", "-q"),
    "verbose": flag("Print every line of the programs that run, and every reason in full.", "--verbose", "-v"),
    "dist": option("Folder for the wheels, report.json and the index.", "DIR"),
    "index": option("Package index to ask first for NAME==VERSION: its URL, or its folder.", "DIR|URL"),
    "summary": option(
        "Also append the report of the run to FILE as Markdown, for example to $GITHUB_STEP_SUMMARY.", "FILE"
    ),
    "require": option(
        "Levels that the proofs must reach in each cell of a wheel: none, static, cpu or gpu; cpu,gpu: both.",
        "LEVELS",
    ),
}
