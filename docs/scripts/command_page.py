"""The page of the command line, from the typer application."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import typer

from builder.cli.app import app
from docs.scripts.markdown import code, one_line, page, sentence, table

_INTRODUCTION = """\
Data goes to stdout; messages go to stderr. `--json` makes stdout data for programs. The
[exit codes](exit-codes.md) are stable. `--torch`, `--cuda`, `--python` and `--ext` select cells; each may be repeated.
`--torch 2.11` means the newest patch release of torch 2.11."""


def cli_page() -> str:
    """Every command with its arguments, options and defaults."""
    root: Any = typer.main.get_command(app)
    commands = dict(_commands(root))
    overview = table(
        ["command", "purpose"],
        [[f"[`{name}`](#{name.replace(' ', '-')})", _summary(command)] for name, command in commands.items()],
    )
    sections = [text for name, command in commands.items() for text in _section(name, command)]
    return page("Command line", _INTRODUCTION, overview, *sections)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 (click's classes)
    """Every command with its name; `store du` for a command of a group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _summary(command: Any) -> str:  # noqa: ANN401 (click's classes, which typer does not export)
    return one_line(command.help or "")


def _section(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    yield f"## {name}"
    yield f"```\n{' '.join(['buildfarm', name, '[OPTIONS]', *map(_word, arguments)])}\n```"
    yield _summary(command)
    if arguments:
        rows = [[code(each.metavar), sentence(each.help)] for each in arguments]
        yield table(["argument", "meaning"], rows)
    yield table(["option", "meaning", "default"], map(_option, options))
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines() if line.strip()]
        yield f"{lines[0]}\n\n```\n" + "\n".join(lines[1:]) + "\n```"


def _word(argument: Any) -> str:  # noqa: ANN401
    text = f"{argument.metavar}..." if argument.nargs == -1 else str(argument.metavar)
    return text if argument.required else f"[{text}]"


def _option(option: Any) -> list[str]:  # noqa: ANN401
    default = option.default
    if option.is_flag:  # one that is on by default shows the option that turns it on
        value, shown = "", option.opts[0] if default else ""
    elif isinstance(default, StrEnum):
        value, shown = " " + "|".join(type(default)), str(default)
    else:
        value, shown = f" {option.metavar or 'TEXT'}", str(default) if default else ""
    return [code("/".join([*option.opts, *option.secondary_opts]) + value), sentence(option.help or ""), code(shown)]
