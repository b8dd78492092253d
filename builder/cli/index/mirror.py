"""`buildfarm index mirror`."""

from __future__ import annotations

from typing import Annotated

import typer

from builder.cli.options import JsonOption, StoreOption, examples
from builder.cli.output import print_data
from builder.errors import Exit, UsageError
from builder.result import PublishOutcome

EXAMPLES = examples(
    "buildfarm index mirror https://wheels.example/simple/ index my_ext 'other_ext>=1.2'",
    "buildfarm index mirror /srv/wheels s3://wheels/team --all",
)

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="The index to copy from: the URL that pip takes as --index-url, or the folder or s3:// URL of an index of"
        " buildfarm.",
    ),
]
ToArgument = Annotated[
    str, typer.Argument(metavar="TO", help="The index to copy to: its folder, or s3://BUCKET/PREFIX.")
]
ProjectsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="PROJECT", help="Projects, maybe with versions: my_ext, my_ext>=1.2.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Copy every project of the source.")]
MaxSizeOption = Annotated[str, typer.Option("--max-size", metavar="SIZE", help="Refuse larger wheels.")]


def mirror(
    source: SourceArgument,
    to: ToArgument,
    projects: ProjectsArgument = None,
    everything: AllOption = False,
    max_size: MaxSizeOption = "4GiB",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy wheels of another index into an index, and compare each with the hash that the source names.

    From an index of buildfarm, the proofs and the provenance are copied too. Wheels without proofs are listed as not
    tested. Yanks and the status of a project are copied; what was yanked here stays yanked.

    A wheel that is in the index is not downloaded again, so run the same command again to get new wheels.
    """
    from builder.commands.folders import new_index, open_store  # noqa: PLC0415 - see `build`
    from builder.commands.index.mirror import Mirror, open_source, requirements_of  # noqa: PLC0415
    from builder.matrix.models.fields import parse_size  # noqa: PLC0415
    from builder.publish.index.objects.place import folder_of, open_objects  # noqa: PLC0415
    from builder.publish.index.repository import Repository  # noqa: PLC0415
    from builder.publish.index.text.publish_text import publish_json, results_text  # noqa: PLC0415

    if bool(projects) == everything:
        raise UsageError("name the projects to copy, or pass --all", where="PROJECT")
    wanted = list(requirements_of(projects or []))
    opened = open_source(source)
    with new_index(folder_of(to), "TO"):
        run = Mirror(opened, Repository(open_objects(to)), open_store(store, run=False), parse_size(max_size))
        results = run.run(wanted)
    print_data(publish_json(results) if as_json else results_text(results))
    refused = any(result.outcome is PublishOutcome.REFUSED for result in results)
    raise typer.Exit(int(Exit.FAILED if refused else Exit.OK))
