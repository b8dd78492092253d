"""The page of the command line, from the typer application."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Literal, get_args, get_origin

from builder.cli.app import PURPOSES, load_command
from docs.scripts.markdown import code, one_line, page, sentence, table

_INTRODUCTION = """\
Results go to stdout, and messages to stderr. [Exit codes](exit-codes.md) are for scripts."""

_SHARED = """\
Several commands have these options. `--torch`, `--cuda`, `--python` and `--ext` select cells. A series such as
`--torch 2.11` selects its newest patch release."""

_HEADS = ("option", "meaning", "default")

#: An option that at least this many commands have is described once.
_MANY = 3


def cli_page() -> str:
    """Every command with its arguments, options and defaults."""
    commands = dict(all_commands())
    overview = table(
        ["command", "purpose"],
        [[f"[`{name}`](#{name.replace(' ', '-')})", _purpose(command)] for name, command in commands.items()],
    )
    count = Counter(row for command in commands.values() for row in map(_option, _options(command)))
    shared = [row for row in map(_option, _options(commands["build"])) if count[row] >= _MANY]
    sections = [text for name, command in commands.items() for text in _section(name, command, shared)]
    return page("Command line", _INTRODUCTION, overview, "## Common options", _SHARED, table(_HEADS, shared), *sections)


def all_commands() -> Iterator[tuple[str, Any]]:
    """Every command with its name; `store prune` for a command of a group."""
    for name in PURPOSES:
        command = load_command(name)
        group = getattr(command, "commands", {})
        yield from ((f"{name} {word}", one) for word, one in group.items())
        if not group:
            yield name, command


def _purpose(command: Any) -> str:  # noqa: ANN401
    """The first paragraph of the summary."""
    return one_line((command.help or "").split("\n\n", maxsplit=1)[0])


def _summary(command: Any) -> str:  # noqa: ANN401 (click's classes, which typer does not export)
    return one_line(command.help or "")


def _options(command: Any) -> list[Any]:  # noqa: ANN401
    return [each for each in command.params if each.param_type_name == "option" and not getattr(each, "hidden", False)]


def _section(name: str, command: Any, shared: Collection[tuple[str, ...]]) -> Iterator[str]:  # noqa: ANN401
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = list(map(_option, _options(command)))
    yield f"## {name}"
    yield f"```\n{' '.join(['buildfarm', name, '[OPTIONS]', *map(_word, arguments)])}\n```"
    yield _summary(command)
    if arguments:
        rows = [[code(each.metavar), sentence(each.help)] for each in arguments]
        yield table(["argument", "meaning"], rows)
    if own := [row for row in options if row not in shared]:
        yield table(_HEADS, own)
    if names := [re.sub(r"[ /].*", "`", row[0]) for row in options if row in shared]:
        yield f"[Common options](#common-options): {', '.join(names)}."
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines() if line.strip()]
        yield f"{lines[0]}\n\n```\n" + "\n".join(lines[1:]) + "\n```"


def _word(argument: Any) -> str:  # noqa: ANN401
    text = f"{argument.metavar}..." if argument.nargs == -1 else str(argument.metavar)
    return text if argument.required else f"[{text}]"


def _option(option: Any) -> tuple[str, ...]:  # noqa: ANN401
    """The names, the meaning and the default of an option."""
    default, kind = option.default, option.type_descriptor.annotation
    if option.is_flag:  # one that is on by default shows the option that turns it on
        value, shown = "", option.opts[0] if default else ""
    elif get_origin(kind) is Literal:
        value, shown = " " + "|".join(get_args(kind)), str(default or "")
    else:
        value, shown = f" {option.metavar or 'TEXT'}", str(default) if default else ""
    return code("/".join([*option.opts, *option.secondary_opts]) + value), sentence(option.help or ""), code(shown)
