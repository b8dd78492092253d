"""`buildfarm ci`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import JsonOption, examples
from builder.cli.output import print_data
from builder.publish.ci.options import WorkflowOptions
from builder.publish.index.bar import levels_of

EXAMPLES = examples(
    'buildfarm ci --install "buildfarm[cache] @ git+https://git.example/buildfarm@COMMIT"',
    "buildfarm ci --install ./tools/buildfarm --runner-labels my-arc-runners",
)

InstallOption = Annotated[
    str,
    typer.Option(
        "--install",
        metavar="REQUIREMENT",
        help="What the jobs install as buildfarm, with pip: a URL with a commit, or a path in the repository.",
    ),
]
DirOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Root of the repository. It contains matrix.yaml.")
]
RunnerLabelsOption = Annotated[
    str,
    typer.Option(
        "--runner-labels",
        metavar="LABELS",
        help="Labels of the runners with a GPU, with commas, or the name of one ARC runner scale set.",
    ),
]
PublishLabelsOption = Annotated[
    str, typer.Option("--publish-labels", metavar="LABELS", help="Labels of the runner that publishes, with commas.")
]
IndexFolderOption = Annotated[
    str,
    typer.Option(
        "--index",
        metavar="DIR",
        help="Folder of the index on the runner that publishes. A folder with an absolute path keeps its wheels between"
        " runs. With a relative path, each run makes a new index and uploads it as an artifact.",
    ),
]
EnvironmentOption = Annotated[
    str, typer.Option("--environment", metavar="NAME", help="Environment of GitHub in which the job publishes.")
]
RequireOption = Annotated[
    str, typer.Option("--require", metavar="LEVELS", help="Levels that publishing requires, as in `publish --require`.")
]


def ci(
    install: InstallOption,
    directory: DirOption = Path(),
    runner_labels: RunnerLabelsOption = WorkflowOptions.runner_labels,
    publish_labels: PublishLabelsOption = WorkflowOptions.publish_labels,
    index: IndexFolderOption = WorkflowOptions.index,
    environment: EnvironmentOption = WorkflowOptions.environment,
    require: RequireOption = WorkflowOptions.require,
    as_json: JsonOption = False,
) -> None:
    """Write workflows for GitHub Actions that build, test on GPUs and publish.

    The files are buildfarm.yml, buildfarm-shard.yml and buildfarm-torch.yml in .github/workflows. A pull request builds
    the newest cell of each extension. Every night, everything is built and published. Every Monday, an issue is opened
    if there is a new torch. Pull requests of forks start no job on a GPU runner.
    """
    from builder.commands.ci.ci import run_ci  # noqa: PLC0415 - jinja2 loads slowly

    levels_of(require)
    written = run_ci(directory, WorkflowOptions(install, runner_labels, publish_labels, index, environment, require))
    if as_json:
        print_data(json.dumps({"files": [str(path) for path in written]}) + "\n")
        return
    next_step = (
        f"Before the first run, make the environment {environment} in the settings of the repository on GitHub, and"
        " allow only the default branch to deploy to it."
    )
    print_data("\n".join([*(f"wrote {path}" for path in written), next_step]) + "\n")
