"""`buildfarm yank`, `unyank` and `buildfarm index`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import JsonOption, examples
from builder.cli.output import print_data
from builder.errors import Exit

if TYPE_CHECKING:
    from builder.publish.index.repository import Repository

YANK_EXAMPLES = examples(
    "buildfarm yank my_ext==1.0+cu130 --index index --reason 'wrong results on sm_120'",
    "buildfarm yank my_ext-1.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl --index index",
)
UNYANK_EXAMPLES = examples("buildfarm unyank my_ext==1.0+cu130 --index index")
CHECK_EXAMPLES = examples("buildfarm index check index")
PRUNE_EXAMPLES = examples("buildfarm index prune index --keep 3 --dry-run")
STATUS_EXAMPLES = examples("buildfarm index status index my_ext deprecated --reason 'use other_ext'")

#: What every command of an index says about its place.
PLACE_HELP = "The index: its folder, or s3://BUCKET/PREFIX."

WhatArgument = Annotated[str, typer.Argument(metavar="WHEEL", help="A wheel's file name, or NAME==VERSION.")]
IndexOption = Annotated[str, typer.Option("--index", metavar="DIR|URL", help=PLACE_HELP)]
IndexArgument = Annotated[str, typer.Argument(metavar="DIR|URL", help=PLACE_HELP)]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; installers print it.")]
KeepOption = Annotated[
    int, typer.Option("--keep", metavar="N", min=1, help="Keep the N newest versions of each project.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")]


class ProjectStatus(StrEnum):
    """The status of a project (PEP 792)."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    QUARANTINED = "quarantined"
    DEPRECATED = "deprecated"


ProjectArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the project.")]
StatusArgument = Annotated[
    ProjectStatus, typer.Argument(metavar="STATUS", help="active, archived, quarantined or deprecated.")
]

app = typer.Typer(help="Check and clean a package index.", no_args_is_help=True, pretty_exceptions_enable=False)


def yank(what: WhatArgument, index: IndexOption, reason: ReasonOption = "", as_json: JsonOption = False) -> None:
    """Mark wheels of an index as yanked: installers choose them only if their exact version is asked for (PEP 592)."""
    _yank(what, index, reason, as_json=as_json)


def unyank(what: WhatArgument, index: IndexOption, as_json: JsonOption = False) -> None:
    """Undo `yank`."""
    _yank(what, index, None, as_json=as_json)


def _yank(what: str, index: str, reason: str | None, *, as_json: bool) -> None:
    from builder.commands.index.manage import yank_wheels  # noqa: PLC0415 - see `build`
    from builder.publish.index.text.manage_text import changed_text  # noqa: PLC0415

    names = yank_wheels(_open(index), what, reason)
    print_data(changed_text("unyanked" if reason is None else "yanked", names, as_json=as_json))


@app.command(epilog=CHECK_EXAMPLES)
def check(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Compare every file with its hash, and every page with its wheels; finish what a killed command left undone."""
    from builder.publish.index.integrity import check_index  # noqa: PLC0415 - see `build`
    from builder.publish.index.text.manage_text import check_json, check_text  # noqa: PLC0415

    result = check_index(_open(index))
    print_data(check_json(result) if as_json else check_text(result))
    raise typer.Exit(int(Exit.FAILED if result.faults else Exit.OK))


@app.command(epilog=PRUNE_EXAMPLES)
def prune(index: IndexArgument, keep: KeepOption, dry_run: DryRunOption = False, as_json: JsonOption = False) -> None:
    """Delete old versions of each project, and files of killed uploads that are older than a day."""
    from builder.commands.index.manage import old_wheels  # noqa: PLC0415 - see `build`
    from builder.publish.index.integrity import abandoned_files  # noqa: PLC0415
    from builder.publish.index.text.manage_text import changed_text  # noqa: PLC0415

    repository = _open(index)
    old, unused = old_wheels(repository, keep), abandoned_files(repository)
    if not dry_run:
        for name in old:
            repository.remove(name)
        for path in unused:
            repository.objects.delete(path)
    print_data(changed_text("would delete" if dry_run else "deleted", [*old, *unused], as_json=as_json))


@app.command(epilog=STATUS_EXAMPLES)
def status(
    index: IndexArgument,
    project: ProjectArgument,
    status: Annotated[
        ProjectStatus, typer.Argument(metavar="STATUS", help="active, archived, quarantined or deprecated.")
    ],
    reason: ReasonOption = "",
) -> None:
    """Set the status of a project, which installers may print (PEP 792)."""
    from builder.commands.index.manage import set_status  # noqa: PLC0415 - see `build`

    set_status(_open(index), project, str(status), reason)


def _open(index: str) -> Repository:
    """The index in a folder or bucket that exists; raises UsageError."""
    from builder.commands.index.manage import open_index  # noqa: PLC0415 - see `build`

    return open_index(index)
