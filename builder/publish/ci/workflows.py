"""The workflows that `buildfarm ci` writes, from the templates in this folder."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.errors import Code, UsageError

#: The first words of every written file. `buildfarm ci` overwrites only files that begin with them.
MARK = "# Written by `buildfarm ci"

#: The actions, each pinned to the commit of its release: a tag can be moved, a commit cannot.
ACTIONS = {
    "checkout": "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
    "setup_python": "actions/setup-python@5fda3b95a4ea91299a34e894583c3862153e4b97 # v7.0.0",
    "upload": "actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0",
    "cache_restore": "actions/cache/restore@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "cache_save": "actions/cache/save@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "download": "actions/download-artifact@3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1",
}

#: What the value of an option may be; these values become YAML and shell without quotes.
_PLAIN = {
    "runner_labels": re.compile(r"[\w.-]+(,[\w.-]+)*"),
    "publish_labels": re.compile(r"[\w.-]+(,[\w.-]+)*"),
    "index": re.compile(r"/?\w[\w./-]*"),
    "environment": re.compile(r"[\w.-]+"),
    "require": re.compile(r"[a-z]+(,[a-z]+)*"),
    "install": re.compile(r"[^\s`$]+( [^\s`$]+)*"),
}
_EXAMPLES = "write labels like self-hosted,gpu, a folder like /srv/wheels, and any other value without special signs"


def workflows(options: WorkflowOptions) -> dict[str, str]:
    """The text of each workflow, by its path in the repository.

    Raises UsageError for a value with characters that cannot be in it.
    """
    given = {field.name: str(getattr(options, field.name)) for field in fields(WorkflowOptions)}
    for name, value in given.items():
        if not _PLAIN[name].fullmatch(value):
            raise UsageError(
                f"{value!r} is no value of this option", Code.VALUE_INVALID, where=_option(name), hints=[_EXAMPLES]
            )
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the files are YAML
        variable_start_string="@{",  # in YAML and bash these words are rare
        variable_end_string="}@",
        block_start_string="@%",
        block_end_string="%@",
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    values = {
        **given,
        "mark": MARK,
        "command": _command(given),
        "actions": ACTIONS,
        "install": shlex.quote(options.install),
        "runner_labels": _runs_on(options.runner_labels),
        "publish_labels": _runs_on(options.publish_labels),
        "environment": _scalar(options.environment),
        "index_is_artifact": not Path(options.index).is_absolute(),
    }
    names = ("buildfarm.yml", "buildfarm-shard.yml", "buildfarm-wheel.yml", "buildfarm-torch.yml")
    return {f".github/workflows/{name}": templates.get_template(f"{name}.j2").render(values) for name in names}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _runs_on(labels: str) -> str:
    """The value of `runs-on`: a list, or a single name."""
    names = [_scalar(label) for label in labels.split(",")]
    return f"[{', '.join(names)}]" if len(names) > 1 else names[0]


def _scalar(value: str) -> str:
    """A value in YAML; in quotes if it could be read as something else: the environment 1.10 as the number 1.1."""
    return value if value[0].isalpha() and yaml.safe_load(value) == value else json.dumps(value)


def _command(given: dict[str, str]) -> str:
    """The options of the command that writes these workflows; those with the default are left out."""
    usual = {field.name: field.default for field in fields(WorkflowOptions)}
    return " ".join(f"{_option(name)} {shlex.quote(value)}" for name, value in given.items() if value != usual[name])


@dataclass(frozen=True)
class WorkflowOptions:
    """The options of `buildfarm ci` that change the workflows; each has the name of its option."""

    install: Annotated[
        str,
        typer.Option(
            "--install",
            metavar="REQUIREMENT",
            help="What the jobs install as buildfarm, with pip: a URL with a commit, or a path in the repository. A"
            " name of the package index, and a URL with a password or a token, are refused.",
        ),
    ]
    runner_labels: Annotated[
        str,
        typer.Option(
            "--runner-labels",
            metavar="LABELS",
            help="Labels of the runners with a GPU, with commas, or the name of one ARC runner scale set.",
        ),
    ] = "self-hosted,linux,x64,gpu"
    publish_labels: Annotated[
        str,
        typer.Option("--publish-labels", metavar="LABELS", help="Labels of the runner that publishes, with commas."),
    ] = "ubuntu-latest"
    index: Annotated[
        str,
        typer.Option(
            "--index",
            metavar="DIR",
            help="Folder of the index on the runner that publishes. A folder with an absolute path keeps its wheels"
            " between runs. With a relative path, each run makes a new index and uploads it as an artifact.",
        ),
    ] = "index"
    environment: Annotated[
        str, typer.Option("--environment", metavar="NAME", help="Environment of GitHub in which the job publishes.")
    ] = "wheels"
    require: Annotated[
        str,
        typer.Option("--require", metavar="LEVELS", help="Levels that publishing requires, as in `publish --require`."),
    ] = "gpu"
