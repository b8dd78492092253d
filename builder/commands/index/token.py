"""`buildfarm token`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import JsonOption, examples
from builder.cli.output import print_data
from builder.errors import Code, UsageError
from builder.log import print_line
from builder.publish.server.tokens import Token, Tokens, parse_lifetime

ADD_EXAMPLES = examples(
    "buildfarm token add index --name ci --scope upload",
    "buildfarm token add index --name my-ext-release --scope upload:my-ext --expires 12h",
    "buildfarm token add index --name gpu-runner --scope prove:my-ext",
    "buildfarm token add index --name readers --scope read --expires never",
)
LIST_EXAMPLES = examples("buildfarm token list index")
REVOKE_EXAMPLES = examples("buildfarm token revoke index ci")

IndexArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the index.")]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Who uses the token; the access log has this name.")
]
ScopeOption = Annotated[
    list[str],
    typer.Option(
        "--scope",
        metavar="SCOPE",
        help="read, upload, or prove: uploads with proofs, which the index then believes. For one project:"
        " upload:PROJECT, prove:PROJECT. Every token may read. Repeatable.",
    ),
]
ExpiresOption = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="When the token expires: 90d, 12h or never.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the token.")]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command(epilog=ADD_EXAMPLES)
def add(
    index: IndexArgument,
    name: NameOption,
    scope: ScopeOption,
    expires: ExpiresOption = "90d",
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it. The index keeps only its hash, so the token cannot be printed again.

    The folder must contain an index, or be empty, as `buildfarm serve` makes it.
    """
    _check(index)
    _refuse_other_folder(index)
    secret, token = Tokens(index).add(name, tuple(scope), parse_lifetime(expires))
    print_data(json.dumps({"token": secret, **_data(token)}, indent=1) + "\n" if as_json else f"{secret}\n")
    print_line(f"{name}: {', '.join(token.scopes)}, {_expiry(token)}; the user name is __token__")


@app.command("list", epilog=LIST_EXAMPLES)
def list_tokens(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Print the tokens of an index: name, scopes, expiry."""
    _check(index)
    tokens = Tokens(index).all()
    if as_json:
        print_data(json.dumps([_data(token) for token in tokens], indent=1) + "\n")
    else:
        print_data("".join(f"{token.name}: {', '.join(token.scopes)}, {_expiry(token)}\n" for token in tokens))


@app.command(epilog=REVOKE_EXAMPLES)
def revoke(index: IndexArgument, name: NameArgument, as_json: JsonOption = False) -> None:
    """Delete a token. A running server refuses it from now on."""
    _check(index)
    Tokens(index).revoke(name)
    print_data(json.dumps({"revoked": name}) + "\n" if as_json else f"revoked {name}\n")


def _check(index: Path) -> None:
    """Raise UsageError if there is no such folder: a mistyped folder would look like an index without tokens."""
    if not index.is_dir():
        raise UsageError(
            "there is no such folder",
            Code.NO_INDEX,
            where=str(index),
            hints=["name the folder that `buildfarm serve` serves; `serve` makes a new one"],
        )


def _refuse_other_folder(index: Path) -> None:
    """Raise UsageError for a folder that has files and no index: no server would know the token."""
    names = {path.name for path in index.iterdir() if not path.name.startswith(".")}
    if names and names.isdisjoint({"records", "pending"}):
        raise UsageError(
            "this folder contains no index",
            Code.NO_INDEX,
            where=str(index),
            hints=["name the folder that `buildfarm serve` serves, or an empty one"],
        )


def _expiry(token: Token) -> str:
    return f"expires {token.expires}" if token.expires else "does not expire"


def _data(token: Token) -> dict[str, object]:
    return {name: value for name, value in asdict(token).items() if name != "sha256"}
