"""What a project chooses about its workflows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkflowOptions:
    """The options of `buildfarm ci`; each has the name of its option on the command line.

    Attributes:
        install: what pip installs as buildfarm: a requirement, or a path in the repository.
        runner_labels: labels of the runners with a GPU, with commas; a single one may be the name of an ARC scale set.
        publish_labels: labels of the runner that publishes, with commas.
        index: the folder of the index on that runner. A relative folder is new in each run, and becomes an artifact.
        environment: the environment of GitHub that the publishing job runs in.
        require: the levels that `buildfarm publish` requires.

    """

    install: str
    runner_labels: str = "self-hosted,linux,x64,gpu"
    publish_labels: str = "ubuntu-latest"
    index: str = "index"
    environment: str = "wheels"
    require: str = "gpu"
