"""What a project chooses about its workflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

InstallOption = Annotated[
    str,
    typer.Option(
        "--install",
        metavar="REQUIREMENT",
        help="What the jobs install as buildfarm, with pip: a URL with a commit, or a path in the repository.",
    ),
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


@dataclass(frozen=True)
class WorkflowOptions:
    """The options of `buildfarm ci` that change the workflows; each has the name of its option."""

    install: InstallOption
    runner_labels: RunnerLabelsOption = "self-hosted,linux,x64,gpu"
    publish_labels: PublishLabelsOption = "ubuntu-latest"
    index: IndexFolderOption = "index"
    environment: EnvironmentOption = "wheels"
    require: RequireOption = "gpu"
