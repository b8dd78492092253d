"""`buildfarm publish`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import DistOption, JsonOption, StoreOption, examples
from builder.cli.output import print_data
from builder.errors import Exit, UsageError
from builder.publish.index.bar import Level
from builder.result import PublishOutcome

EXAMPLES = examples(
    "buildfarm publish --to index", "buildfarm publish dist/NAME.whl --to /srv/wheels --require cpu,gpu"
)

WheelsArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="WHEEL", help="Wheel files. Default: every wheel in the --dist folder.")
]
ToOption = Annotated[
    str, typer.Option("--to", metavar="DIR", help="The folder of the index. It is made if it is missing.")
]
RequireOption = Annotated[
    str,
    typer.Option(
        "--require",
        metavar="LEVELS",
        help="Levels that the proofs must reach in each cell of a wheel: none, static, cpu or gpu; cpu,gpu: both.",
    ),
]


def publish(
    to: ToOption,
    wheels: WheelsArgument = None,
    require: RequireOption = "cpu",
    dist: DistOption = Path("dist"),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put wheels into a package index, each with its proofs, its SBOM and its provenance.

    A wheel is refused if a check failed, or if its proofs do not reach the levels of --require in each of its cells.

    Level none: no check failed.

    Level static: every check of the wheel file passed, and the cell defines every symbol that the wheel's libraries
    need.

    Level cpu: as static, and the wheel was imported in the cell, every op has a case, and every result is right.

    Level gpu: as cpu, but with results on a GPU. A wheel can reach gpu without cpu, if an op has no CPU kernel.

    A published file never changes: a different wheel of the same file name is refused too.
    """
    from builder.commands.folders import check_output, open_store  # noqa: PLC0415 - see `build`
    from builder.commands.index.publish import publish_wheels  # noqa: PLC0415
    from builder.publish.index.objects import Folder  # noqa: PLC0415
    from builder.publish.index.repository import Repository  # noqa: PLC0415
    from builder.publish.index.text import publish_text as text  # noqa: PLC0415

    found = list(wheels or sorted(dist.glob("*.whl")))
    opened = open_store(store, run=False)
    required = levels_of(require)
    check_output(Path(to), "--to")
    results = publish_wheels(Repository(Folder(Path(to))), found, opened, required)
    print_data(text.publish_json(results) if as_json else text.publish_text(results, Path(to), required))
    refused = any(result.outcome is PublishOutcome.REFUSED for result in results)
    raise typer.Exit(int(Exit.FAILED if refused else Exit.OK))


def levels_of(text: str) -> list[Level]:
    """The levels that an option names, such as `static,gpu`; raises UsageError."""
    try:
        return [Level(word.strip()) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{text!r} is not a level; write none, static, cpu or gpu, or several with commas: cpu,gpu",
            where="--require",
        ) from None
