"""The program `buildfarm`: its commands and the options it takes without a command.

The module of a command is imported when the command runs, or when the help lists all commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup
from typer.main import get_group

from builder.cli.options import examples


class _Place(NamedTuple):
    """Where a command is: its module in `builder.cli`, its function, and the name of its examples.

    Without a function, the commands are those of the module's `app`.
    """

    module: str
    function: str = ""
    examples: str = "EXAMPLES"


#: The commands, in the order of the help.
_PLACES = {
    "init": _Place("init", "init"),
    "add": _Place("add", "add"),
    "plan": _Place("plan", "plan"),
    "render": _Place("render", "render"),
    "build": _Place("build", "build"),
    "rebuild": _Place("rebuild", "rebuild"),
    "cases": _Place("cases", "cases"),
    "smoke": _Place("smoke", "smoke"),
    "worker": _Place("distributed.worker", "worker"),
    "publish": _Place("index.publish", "publish"),
    "adopt": _Place("index.adopt", "adopt"),
    "relabel": _Place("index.relabel", "relabel"),
    "serve": _Place("index.serve", "serve"),
    "token": _Place("index.token"),
    "resolve": _Place("index.resolve", "resolve"),
    "yank": _Place("index.manage", "yank", "YANK_EXAMPLES"),
    "unyank": _Place("index.manage", "unyank", "UNYANK_EXAMPLES"),
    "index": _Place("index.manage"),
    "verify": _Place("verify.verify", "verify"),
    "inventory": _Place("verify.inventory"),
    "doctor": _Place("doctor.doctor", "doctor"),
    "report": _Place("runs.report", "report"),
    "ci": _Place("ci.ci", "ci"),
    "store": _Place("store"),
}


@cache
def _command(name: str) -> object:
    """Import the command of this name. Raises KeyError for an unknown one."""
    place = _PLACES[name]
    module = import_module(f"builder.cli.{place.module}")
    alone = typer.Typer(pretty_exceptions_enable=False)
    if place.function:
        alone.command(name, epilog=getattr(module, place.examples))(getattr(module, place.function))
    else:
        alone.add_typer(module.app, name=name)
    return get_group(alone).commands[name]


class _Loaded(Mapping[str, object]):
    """The commands by name; each is imported at its first use."""

    def __getitem__(self, name: str) -> object:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class _Commands(TyperGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 (typer passes them on)
        super().__init__(**attributes)
        self.commands = cast("Any", _Loaded())


app = typer.Typer(
    name="buildfarm",
    cls=_Commands,
    help="Build wheels of PyTorch CUDA extensions, and test each wheel in every cell that it serves.\n\n"
    "A cell is one torch, one CUDA, one Python and one platform, such as torch2.11.0-cu130-cp312 (on linux_x86_64).",
    epilog=examples("buildfarm plan", "buildfarm build --torch 2.11 --cuda 13.0 --python 3.12"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from builder import __version__  # noqa: PLC0415 - takes long

        typer.echo(f"buildfarm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...
