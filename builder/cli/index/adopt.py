"""`buildfarm adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.index.publish import RequireOption, ToOption, levels_of
from builder.cli.options import (
    CudaOption,
    ExtOption,
    IndexOption,
    JsonOption,
    NoPythonDownloadsOption,
    PythonOption,
    QuietOption,
    StoreOption,
    TorchOption,
    VerboseOption,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.errors import Exit
from builder.log import set_verbosity
from builder.matrix.config import MATRIX
from builder.result import PublishOutcome

EXAMPLES = examples(
    "buildfarm adopt NAME==VERSION --to index --torch 2.11 --python 3.12 --require static",
    "buildfarm adopt downloads/ https://wheels.example/NAME.whl --to /srv/wheels",
)

ForeignArgument = Annotated[
    list[str],
    typer.Argument(metavar="WHEEL", help="File, folder with wheels, URL, or NAME==VERSION on the package index."),
]
RecipesOption = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="The file that lists the recipes, whose cases are run. Default: matrix.yaml if there is one.",
    ),
]


def adopt(
    to: ToOption,
    wheels: ForeignArgument,
    require: RequireOption = "cpu",
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    matrix: RecipesOption = None,
    index: IndexOption = "",
    no_python_downloads: NoPythonDownloadsOption = False,
    store: StoreOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Test wheels that others built, and put them into a package index. Builds nothing.

    Each wheel gets the checks that `build` runs, and the level of `publish --require` applies to each tested cell.

    A wheel is tested in each cell that it claims, by its tags, its METADATA, its version and its libraries, with the
    newest patch of each torch series. --torch, --cuda and --python leave out cells.

    A cell that this machine cannot make is reported as not run, and the wheel is not published for this cell.
    """
    from builder.commands.folders import new_index, open_store  # noqa: PLC0415 - see `build`
    from builder.commands.index.adopt import AdoptOptions, run_adopt  # noqa: PLC0415
    from builder.publish.index.objects.place import folder_of, open_objects, url_of  # noqa: PLC0415
    from builder.publish.index.repository import Repository  # noqa: PLC0415
    from builder.publish.index.text.adopt_text import adopt_json, adopt_text  # noqa: PLC0415

    set_verbosity(quiet=quiet, verbose=verbose)
    required = levels_of(require)
    recipes = matrix or (MATRIX if MATRIX.is_file() else None)
    options = AdoptOptions(
        tuple(wheels), tuple(required), selection(torch, cuda, python, ext), recipes, index, not no_python_downloads
    )
    opened = open_store(store)
    with new_index(folder_of(to)):
        results = run_adopt(options, Repository(open_objects(to)), opened)
    print_data(adopt_json(results) if as_json else adopt_text(results, url_of(to), required))
    refused = any(result.published.outcome is PublishOutcome.REFUSED for result in results)
    raise typer.Exit(int(Exit.FAILED if refused else Exit.OK))
