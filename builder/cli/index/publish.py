"""`buildfarm publish`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from builder.cli.options import DistOption, JsonOption, StoreOption, examples
from builder.cli.output import print_data
from builder.errors import BuildfarmError, Exit, UsageError, raise_problems
from builder.log import print_error
from builder.publish.index.bar import Level
from builder.result import PublishOutcome, PublishResult

if TYPE_CHECKING:
    from builder.store import Store

EXAMPLES = examples(
    "buildfarm publish --to index",
    "buildfarm publish dist/NAME.whl --to /srv/wheels --require cpu,gpu",
    "buildfarm publish --to s3://wheels/team",
    "BUILDFARM_TOKEN=... buildfarm publish --to https://wheels.example/",
)

WheelsArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="WHEEL", help="Wheel files. Default: every wheel in the --dist folder.")
]
ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="DIR|URL",
        help="The index: its folder, which is made if it is missing, or s3://BUCKET/PREFIX.",
    ),
]
PublishToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="DIR|URL",
        help="The index: its folder, which is made if it is missing; s3://BUCKET/PREFIX; or the URL of a running"
        " `buildfarm serve`.",
    ),
]
RequireOption = Annotated[
    str,
    typer.Option(
        "--require",
        metavar="LEVELS",
        help="Levels that the proofs must reach in each cell of a wheel: none, static, cpu or gpu; cpu,gpu: both."
        " cpu,verify: also, no check of `verify` was left out.",
    ),
]
MatrixOption = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="The matrix whose cells the pages for people show. Default: matrix.yaml, if there is one.",
    ),
]


def publish(
    to: PublishToOption,
    wheels: WheelsArgument = None,
    require: RequireOption = "cpu",
    dist: DistOption = Path("dist"),
    matrix: MatrixOption = None,
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

    The checks of `buildfarm verify` run too. A failed one refuses the wheel, unless the recipe in --matrix accepts it.
    One that did not run, because the store has no symbol inventory, refuses it only with --require verify.

    A published file never changes: a different wheel of the same file name is refused too.

    Without WHEEL, each build that failed in the last run of `buildfarm build` is an error: its wheel is not in --dist.

    A server gets the token in the environment variable BUILDFARM_TOKEN, or in the netrc file. It must have the scope
    prove: see `buildfarm token add --help`.

    If there is a matrix, the pages for people also show for which of its cells a wheel is missing, and why others get
    none. A server gets no plan.
    """
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.commands.smoke.failed_builds import unpublished_builds  # noqa: PLC0415
    from builder.publish.index.text import publish_text as text  # noqa: PLC0415

    found = list(wheels or sorted(dist.glob("*.whl")))
    failed = [] if wheels else unpublished_builds(dist)
    if not found:
        raise_problems(failed)
    opened = open_store(store, run=False)
    required = levels_of(require)
    index, results = _publish(to, found, opened, required, matrix)
    print_data(text.publish_json(results) if as_json else text.publish_text(results, index, required))
    _finish(results, failed)


def _publish(
    to: str, wheels: Sequence[Path], store: Store, required: Sequence[Level], matrix: Path | None
) -> tuple[str, list[PublishResult]]:
    """Publish wheels; return the URL of the index for pip and uv, empty for a bucket, and what was done."""
    from builder.commands.folders import new_index  # noqa: PLC0415
    from builder.commands.index.publish import plans_of, publish_wheels, recipes_of  # noqa: PLC0415
    from builder.publish.index.objects.place import folder_of, open_objects, url_of  # noqa: PLC0415
    from builder.publish.index.repository import Repository  # noqa: PLC0415

    if to.startswith(("http://", "https://")):
        from builder.publish.remote.server import IndexServer  # noqa: PLC0415

        if matrix:
            raise UsageError("a server gets no plan of a matrix; leave out the option", where="--matrix")
        server = IndexServer(to)
        return server.url, publish_wheels(server, wheels, store, required, recipes_of(None))
    plans, recipes = plans_of(matrix), recipes_of(matrix)
    with new_index(folder_of(to)):
        repository = Repository(open_objects(to))
        results = publish_wheels(repository, wheels, store, required, recipes)
        if any(result.outcome is not PublishOutcome.REFUSED for result in results):
            repository.set_plans(plans)
    return url_of(to), results


def _finish(results: Sequence[PublishResult], failed: Sequence[BuildfarmError]) -> NoReturn:
    """Print the builds that failed; exit with 1 if there is one, or if a wheel was refused."""
    for error in failed:
        print_error(error)
    refused = any(result.outcome is PublishOutcome.REFUSED for result in results)
    raise typer.Exit(int(Exit.FAILED if refused or failed else Exit.OK))


def levels_of(text: str) -> list[Level]:
    """The levels that an option names, such as `static,gpu`; raises UsageError."""
    try:
        return [Level(word.strip()) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{text!r} is not a level; write none, static, cpu, gpu or verify, or several with commas: cpu,gpu",
            where="--require",
        ) from None
