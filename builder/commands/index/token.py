"""`buildfarm token`."""

from dataclasses import dataclass
from pathlib import Path

from builder.errors import Code, UsageError
from builder.log import print_data, print_line
from builder.option import argument, option
from builder.publish.server.tokens import Token, Tokens, parse_lifetime


@dataclass(frozen=True, kw_only=True)
class TokensOptions:
    """The options of `buildfarm token list`."""

    index: Path = argument("The folder of the index.", "DIR")


@dataclass(frozen=True, kw_only=True)
class NewTokenOptions(TokensOptions):
    """The options of `buildfarm token add`."""

    name: str = option("Who uses the token; the access log has this name.", "NAME", default=...)
    scope: list[str] = option(
        "read, upload, or prove: uploads with proofs, which the index then believes. For one project:"
        " upload:PROJECT, prove:PROJECT. Every token may read. Repeatable.",
        "SCOPE",
        default=...,
    )
    expires: str = option("When the token expires: 90d, 12h or never.", "TIME", default="90d")


@dataclass(frozen=True, kw_only=True)
class OldTokenOptions(TokensOptions):
    """The options of `buildfarm token revoke`."""

    name: str = argument("The name of the token.", "NAME")


def add(options: NewTokenOptions) -> None:
    """Make a token and print it. The index keeps only its hash, so the token cannot be printed again.

    Examples:
        buildfarm token add index --name ci --scope upload
        buildfarm token add index --name my-ext-release --scope upload:my-ext --expires 12h
        buildfarm token add index --name gpu-runner --scope prove:my-ext
        buildfarm token add index --name readers --scope read --expires never
    """
    lifetime = parse_lifetime(options.expires)
    _check(options.index)
    secret, token = Tokens(options.index).add(options.name, tuple(options.scope), lifetime)
    print_data(f"{secret}\n")
    print_line(f"{_line(token)}; the user name is __token__")


def list_tokens(options: TokensOptions) -> None:
    """Print the tokens of an index: name, scopes, expiry.

    Examples:
        buildfarm token list index
    """
    _check(options.index)
    print_data("".join(f"{_line(token)}\n" for token in Tokens(options.index).all()))


def revoke(options: OldTokenOptions) -> None:
    """Delete a token. A running server refuses it from now on.

    Examples:
        buildfarm token revoke index ci
    """
    _check(options.index)
    Tokens(options.index).revoke(options.name)
    print_data(f"revoked {options.name}\n")


COMMANDS = {"add": add, "list": list_tokens, "revoke": revoke}


def _check(index: Path) -> None:
    """Raise UsageError if there is no such folder: a mistyped folder would look like an index without tokens."""
    if not index.is_dir():
        hint = "name the folder that `buildfarm serve` serves; `serve` makes a new one"
        raise UsageError("there is no such folder", Code.NO_INDEX, where=str(index), hints=[hint])


def _line(token: Token) -> str:
    expiry = f"expires {token.expires}" if token.expires else "does not expire"
    return f"{token.name}: {', '.join(token.scopes)}, {expiry}"
