"""`buildfarm rebuild`."""

from __future__ import annotations

import typer

from builder.cli.options import (
    ImageOption,
    JobsOption,
    JsonOption,
    NoPullOption,
    NoPythonDownloadsOption,
    QuietOption,
    RebuiltOption,
    StoreOption,
    VerboseOption,
    VerifyOption,
    WheelArgument,
    WheelMatrixOption,
    examples,
)
from builder.cli.output import print_data
from builder.errors import Exit, UsageError
from builder.log import set_verbosity

EXAMPLES = examples("buildfarm rebuild dist/NAME.whl --verify", "buildfarm rebuild dist/NAME.whl --out rebuilt")


def rebuild(
    wheel: WheelArgument,
    verify: VerifyOption = False,
    out: RebuiltOption = None,
    matrix: WheelMatrixOption = None,
    image: ImageOption = None,
    no_pull: NoPullOption = False,
    jobs: JobsOption = None,
    no_python_downloads: NoPythonDownloadsOption = False,
    store: StoreOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build a wheel again from its recipe, with the packages that the record inside the wheel names.

    Stops with an error if the recipe, the source or the toolchain differs from the record.

    Without matrix.yaml, the recipe is made from the record. Then the wheel decides whose build scripts run here.
    """
    from builder.commands.rebuild import rebuild as verb  # noqa: PLC0415 - see `build`
    from builder.publish.rebuild_text import rebuild_json, rebuild_text  # noqa: PLC0415

    set_verbosity(quiet=quiet, verbose=verbose)
    if not (verify or out):
        raise UsageError("nothing to do: pass --verify or --out DIR", where="rebuild")
    result = verb.run_rebuild(
        verb.RebuildOptions(wheel, matrix, image, not no_pull, jobs, not no_python_downloads, store, out)
    )
    if verify or as_json:
        print_data(rebuild_json(result) if as_json else rebuild_text(result))
    if verify:
        raise typer.Exit(int(Exit.OK if result.equal else Exit.FAILED))
