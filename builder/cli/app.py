"""The program `buildfarm`: its commands and the options it takes without a command.

The module of a command is imported when the command runs, because some modules load slowly.
"""

import gc
import os
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group
from typer.models import OptionInfo

from builder import SAVED
from builder.errors import Exit
from builder.log import set_verbosity
from builder.option import SHARED

#: What each command does, in the order of the help: the first paragraph of its docstring.
PURPOSES = {
    "init": "Start a project with a small example extension, or with the .cu and .cpp files of the folder.",
    "add": "Write a recipe for a source and add it to matrix.yaml.",
    "facts": "Read from the package index what this version does not know about a torch or a CUDA, for a plan.",
    "plan": "Print the builds, the cells that each build serves, and why the other cells are skipped. Builds nothing.",
    "render": "Write the Dockerfile of every image that the selection needs. Does not need Docker.",
    "build": "Build the selected wheels, test them in their cells, and write them to dist/ with an index for pip and"
    " uv.",
    "rebuild": "Build a wheel again from its recipe, with the packages that the record inside the wheel names.",
    "cases": "Draft the cases.py of a built extension: find its ops, and try inputs until each op accepts a call.",
    "smoke": "Test finished wheels: call every op in each cell and run the checks of ops. Builds nothing.",
    "worker": "Build and test wheels for `buildfarm build --scheduler`, as a worker of a Dask scheduler.",
    "publish": "Put wheels into a package index, each with its proofs, its SBOM and its provenance.",
    "adopt": "Test wheels that others built, and put them into a package index. Builds nothing.",
    "relabel": "Write a wheel whose file name, METADATA and WHEEL agree, such as after somebody renamed the file.",
    "serve": "Serve a package index over HTTP, and accept uploads by `buildfarm publish`, twine and `uv publish`.",
    "token": "Make and revoke the tokens of an index server.",
    "resolve": "Find the wheel of an index for a machine, and print the commands that install it.",
    "yank": "Mark wheels of an index as yanked: installers choose them only if their exact version is asked for"
    " (PEP 592).",
    "index": "Check and clean a package index.",
    "verify": "Judge any wheel from its file alone: with which torch, GPUs and systems it works. Executes nothing in"
    " it.",
    "doctor": "Judge a Python environment with torch, and print a command that mends each fault.",
    "report": "Write a page about a run of `build` or `smoke`: results, checks, ends of logs, and a timeline.",
    "ci": "Write workflows for GitHub Actions that build, test and publish, with or without a GPU.",
    "store": "Free the disk space of the store; list earlier runs; save what builds need where there is no network.",
}
#: The module of a command in `builder.commands`, if it has another name.
PLACES = {
    "build": "building.build",
    "worker": "distributed.worker_command",
    **{name: f"index.{name}" for name in ("publish", "adopt", "relabel", "serve", "token", "resolve")},
    **dict.fromkeys(("yank", "index"), "index.manage"),
}
#: Options that end the list of a command's options, in the opposite order.
_LAST = ("as_json", "verbose", "quiet", "store")


def with_parameters(function: Callable[..., Exit | None]) -> Callable[..., None]:
    """A function for typer whose parameters are the fields of the dataclass that `function` takes as `options`.

    What `function` returns becomes the exit code; None: all is well.
    """
    options = get_type_hints(function)["options"]

    def run(**values: object) -> None:
        set_verbosity(quiet=bool(values.get("quiet")), verbose=bool(values.get("verbose")))
        if saved := values.get("saved"):
            os.environ[SAVED] = str(Path(str(saved)).expanduser().absolute())
        if exit_code := function(options=options(**values)):
            raise typer.Exit(int(exit_code))

    kinds = get_type_hints(options)
    declared = [(one, (one.metadata or SHARED[one.name].metadata)["parameter"]) for one in fields(options)]
    # Those with a heading of their own come last in the help, before them those of _LAST.
    declared.sort(key=lambda pair: (bool(pair[1].rich_help_panel), *(pair[0].name == last for last in _LAST)))
    parameters = []
    for one, declaration in declared:
        if isinstance(declaration, OptionInfo) and not declaration.param_decls:
            declaration.param_decls = (f"--{one.name.replace('_', '-')}",)
        default = Parameter.empty if one.default is MISSING else one.default
        kind = Annotated[kinds[one.name], declaration]  # type: ignore[valid-type, name-defined] # made while it runs
        parameters.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # inspect.signature reads it
    return run


def _examples(*commands: str) -> str:
    """The end of a help page: each command on a line of its own."""
    return "\n\n".join(["Examples:", *commands])


@cache
def load_command(name: str) -> Any:  # noqa: ANN401 (a class of typer or of click)
    """Import a command: the function of its name, or the group of the functions in `COMMANDS` of its module.

    The docstring of a function is its help. Its last section, `Examples:`, has a command on each line.
    """
    module = import_module(f"builder.commands.{PLACES.get(name, name)}")
    gc.freeze()  # no collection looks at what was imported, also not that at the end
    single = getattr(module, name, None)
    alone = typer.Typer(name=name, help=PURPOSES[name], no_args_is_help=True, pretty_exceptions_enable=False)
    for word, function in ({name: single} if single else module.COMMANDS).items():
        text, _, lines = cleandoc(function.__doc__).partition("\n\nExamples:\n")
        epilog = _examples(*(line.strip() for line in lines.splitlines()))
        alone.command(word, help=text, epilog=epilog)(with_parameters(function))
    group = get_group(alone)
    return group.commands[name] if single else group


class _Commands(TyperGroup):
    """The group of all commands. For the help, no command is imported."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 (typer passes them on)
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=purpose) for name, purpose in PURPOSES.items()}

    def resolve_command(self, ctx: Any, args: Any) -> Any:  # noqa: ANN401 (of a package that typer contains)
        """Return the name, the command and the remaining words of a command line; import the command."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(command.name or ""), rest


app = typer.Typer(
    name="buildfarm",
    cls=_Commands,
    help="Build wheels of PyTorch CUDA extensions, and test each wheel in every cell that it serves.\n\n"
    "A cell is one torch, one CUDA, one Python and one platform, such as torch2.11.0-cu130-cp312 (on linux_x86_64).",
    epilog=_examples("buildfarm plan", "buildfarm build --torch 2.11 --cuda 13.0 --python 3.12"),
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
