"""The files that `buildfarm ci` writes: workflows from the templates in this folder, and what their jobs install."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, fields
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.errors import Code, UsageError
from builder.option import option
from builder.publish.index.levels import Level, levels_of

#: The first words of every written file. `buildfarm ci` overwrites only files that begin with them.
MARK = "# Written by `buildfarm ci"

#: The workflows, and the packages that their jobs install, with hashes; by their path in the repository.
MAIN, WHEEL = ".github/workflows/buildfarm.yml", ".github/workflows/buildfarm-wheel.yml"
REQUIREMENTS = ".github/buildfarm-requirements.txt"
#: The image of the machines of GitHub. Wheels need its glibc, so it does not follow `ubuntu-latest`.
IMAGE = "ubuntu-24.04"

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
    "branch": re.compile(r"\w[\w./-]*"),
    "require": re.compile(r"[a-z]+(,[a-z]+)*"),
    "install": re.compile(r"[^\s`$]+( [^\s`$]+)*"),
}
_EXAMPLES = "write labels like self-hosted,gpu, a folder like /srv/wheels, and any other value without special signs"


def workflows(options: WorkflowOptions) -> dict[str, str]:
    """The text of each file, by its path in the repository.

    Raises UsageError for a value with characters that cannot be in it, and for an unknown level.
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
        "command": options_text(options),
        "actions": ACTIONS,
        "gpu": options.needs_gpu,
        "image": IMAGE,
        "requirements": REQUIREMENTS,
        "install": shlex.quote(options.install),
        "runner_labels": _runs_on(options.runner_labels),
        "publish_labels": _runs_on(options.publish_labels),
        "environment": _scalar(options.environment),
        "branch": _scalar(options.branch),
        "branch_name": options.branch,
        "index_is_artifact": not options.keeps_index,
    }
    paths = (MAIN, WHEEL) if options.needs_gpu else (MAIN,)
    texts = {path: templates.get_template(f"{Path(path).name}.j2").render(values) for path in paths}
    return texts | {REQUIREMENTS: f"{MARK}`.\n{(Path(__file__).parent / 'requirements.txt').read_text()}"}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _runs_on(labels: str) -> str:
    """The value of `runs-on`: a list, or a single name."""
    names = [_scalar(label) for label in labels.split(",")]
    return f"[{', '.join(names)}]" if len(names) > 1 else names[0]


def _scalar(value: str) -> str:
    """A value in YAML; in quotes if it could be read as something else: the environment 1.10 as the number 1.1."""
    return value if value[0].isalpha() and yaml.safe_load(value) == value else json.dumps(value)


def options_text(options: WorkflowOptions) -> str:
    """The options of the command that writes these workflows; those with the default are left out."""
    given = [(field, str(getattr(options, field.name))) for field in fields(WorkflowOptions)]
    return " ".join(f"{_option(f.name)} {shlex.quote(value)}" for f, value in given if value != f.default)


@dataclass(frozen=True)
class WorkflowOptions:
    """The options of `buildfarm ci` that change the workflows; each has the name of its option."""

    install: str = option(
        "What the jobs install as buildfarm, with pip: a URL with a commit, or a path in the repository. A"
        " name of the package index, and a URL with a password or a token, are refused.",
        "REQUIREMENT",
        default=...,
    )
    runner_labels: str = option(
        "Labels of the runners with a GPU, with commas, or the name of one ARC runner scale set. Only with gpu"
        " in --require.",
        "LABELS",
        default="self-hosted,linux,x64,gpu",
    )
    publish_labels: str = option("Labels of the runner that publishes, with commas.", "LABELS", default=IMAGE)
    index: str = option(
        "Folder of the index on the runner that publishes. A folder with an absolute path keeps its wheels"
        " between runs. With a relative path, each run makes a new index and uploads it as an artifact.",
        "DIR",
        default="index",
    )
    environment: str = option("Environment of GitHub in which the job publishes.", "NAME", default="wheels")
    branch: str = option("The default branch. A push to it builds the newest cells.", "NAME", default="main")
    require: str = option(
        "Levels that publishing requires, as in `publish --require`. Without gpu, no job needs a runner with a"
        " GPU: the machines of GitHub build, and test on the CPU.",
        "LEVELS",
        default="gpu",
    )

    @property
    def keeps_index(self) -> bool:
        """Whether the runner that publishes keeps the index between runs; else it is an artifact of each run."""
        return Path(self.index).is_absolute()

    @property
    def needs_gpu(self) -> bool:
        """Whether a job runs on a GPU. Raises UsageError for an unknown level."""
        return Level.GPU in levels_of(self.require)
