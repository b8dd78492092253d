"""The program `buildfarm`: its commands and the options it takes without a command."""

from __future__ import annotations

from typing import Annotated

import typer

from builder import __version__
from builder.cli import add, build, cases, init, plan, rebuild, render, smoke, store
from builder.cli.ci import ci
from builder.cli.index import manage, publish, resolve, serve, token
from builder.cli.options import examples

app = typer.Typer(
    name="buildfarm",
    help="Build wheels of PyTorch CUDA extensions, and test each wheel in every cell that it serves.\n\n"
    "A cell is one torch, one CUDA, one Python and one platform, such as torch2.11.0-cu130-cp312 (on linux_x86_64).",
    epilog=examples("buildfarm plan", "buildfarm build --torch 2.11 --cuda 13.0 --python 3.12"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"buildfarm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


app.command(epilog=init.EXAMPLES)(init.init)
app.command(epilog=add.EXAMPLES)(add.add)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=render.EXAMPLES)(render.render)
app.command(epilog=build.EXAMPLES)(build.build)
app.command(epilog=rebuild.EXAMPLES)(rebuild.rebuild)
app.command(epilog=cases.EXAMPLES)(cases.cases)
app.command(epilog=smoke.EXAMPLES)(smoke.smoke)
app.command(epilog=publish.EXAMPLES)(publish.publish)
app.command(epilog=serve.EXAMPLES)(serve.serve)
app.add_typer(token.app, name="token")
app.command(epilog=resolve.EXAMPLES)(resolve.resolve)
app.command(epilog=manage.YANK_EXAMPLES)(manage.yank)
app.command(epilog=manage.UNYANK_EXAMPLES)(manage.unyank)
app.add_typer(manage.app, name="index")
app.command(epilog=ci.EXAMPLES)(ci.ci)
app.add_typer(store.app, name="store")
