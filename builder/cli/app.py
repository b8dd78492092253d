"""The program `buildfarm`: its commands and the options it takes without a command.

The module of a command is imported when the command runs. The list of all commands has their docstrings, which are read
without an import, because some modules load slowly.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group
from typer.models import Default

from builder.cli.options import examples


class _Place(NamedTuple):
    """Where a command is: its module in `builder`, its function, and the name of its examples.

    Without a function, the commands are those of the module's `app`, and `help` says what they do.
    """

    module: str
    function: str = ""
    examples: str = "EXAMPLES"
    help: str = ""


#: The commands, in the order of the help.
_PLACES = {
    "init": _Place("commands.init", "init"),
    "add": _Place("commands.add", "add"),
    "plan": _Place("commands.plan", "plan"),
    "render": _Place("commands.render", "render"),
    "build": _Place("commands.building.build", "build"),
    "rebuild": _Place("commands.rebuild", "rebuild"),
    "cases": _Place("commands.cases", "cases"),
    "smoke": _Place("commands.smoke", "smoke"),
    "worker": _Place("commands.distributed.worker_command", "worker"),
    "publish": _Place("commands.index.publish", "publish"),
    "adopt": _Place("commands.index.adopt", "adopt"),
    "relabel": _Place("commands.index.relabel", "relabel"),
    "serve": _Place("commands.index.serve", "serve"),
    "token": _Place("commands.index.token", help="Make and revoke the tokens of an index server."),
    "resolve": _Place("commands.index.resolve", "resolve"),
    "yank": _Place("commands.index.manage", "yank", "YANK_EXAMPLES"),
    "unyank": _Place("commands.index.manage", "unyank", "UNYANK_EXAMPLES"),
    "index": _Place("commands.index.manage", help="Check and clean a package index."),
    "verify": _Place("commands.verify", "verify"),
    "inventory": _Place("commands.inventories"),
    "doctor": _Place("commands.doctor", "doctor"),
    "report": _Place("commands.report", "report"),
    "ci": _Place("commands.ci", "ci"),
    "store": _Place("commands.store"),
}


def with_parameters(function: Callable[..., None]) -> Callable[..., None]:
    """A function for typer whose parameters are the fields of the dataclass that `function` takes as `options`.

    It also has the parameter `context` of `function`, if there is one. A function without `options` is returned as it
    is.
    """
    options = get_type_hints(function).get("options")
    if options is None:
        return function
    parameters = [one for name, one in signature(function, eval_str=True).parameters.items() if name == "context"]
    own = {one.name for one in parameters}

    def run(**values: object) -> None:
        given = {name: values.pop(name) for name in own}
        function(options=options(**values), **given)

    kinds = get_type_hints(options, include_extras=True)
    # Options with a heading of their own in the help, which several commands inherit, come last.
    for one in sorted(fields(options), key=lambda one: bool(kinds[one.name].__metadata__[0].rich_help_panel)):
        default = Parameter.empty if one.default is MISSING else one.default
        parameters.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=kinds[one.name]))
    run.__doc__ = function.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # inspect.signature reads it
    return run


@cache
def _command(name: str) -> object:
    """Import the command of this name. Raises KeyError for an unknown one."""
    place = _PLACES[name]
    module = import_module(f"builder.{place.module}")
    alone = typer.Typer(pretty_exceptions_enable=False)
    if place.function:
        function = with_parameters(getattr(module, place.function))
        alone.command(name, epilog=getattr(module, place.examples))(function)
    else:
        alone.add_typer(module.app, name=name, help=place.help or Default(None))
    return get_group(alone).commands[name]


class _Loaded(Mapping[str, object]):
    """The commands by name; each is imported at its first use."""

    def __getitem__(self, name: str) -> object:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


def _docstring(place: _Place) -> str:
    """What a command does; its module is not imported."""
    spec = find_spec(f"builder.{place.module}")
    tree = ast.parse(Path(spec.origin).read_bytes() if spec and spec.origin else b"")
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == place.function)
    return next(filter(None, map(ast.get_docstring, functions)), "")


class _Described(_Loaded):
    """The commands for the help: with what they do, and without their options."""

    def __getitem__(self, name: str) -> object:
        place = _PLACES[name]
        if text := place.help or (place.function and _docstring(place)):
            return TyperCommand(name, help=text)
        return super().__getitem__(name)


class _Commands(TyperGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 (typer passes them on)
        super().__init__(**attributes)
        self.commands = cast("Any", _Loaded())

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 (of a package that typer contains)
        """Print the help without importing the commands."""
        self.commands = cast("Any", _Described())
        super().format_help(ctx, formatter)
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
