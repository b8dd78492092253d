"""`buildfarm ci`: write the workflows of a project."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import JsonOption, examples
from builder.cli.output import print_data
from builder.errors import Code, UsageError
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.publish.ci.install import check_install
from builder.publish.ci.shards import Scope, shards_json
from builder.publish.ci.workflows import MARK, WorkflowOptions, workflows
from builder.publish.index.levels import levels_of
from builder.store import write_atomic

EXAMPLES = examples(
    'buildfarm ci --install "buildfarm[cache] @ git+https://git.example/buildfarm@COMMIT"',
    "buildfarm ci --install ./tools/buildfarm --runner-labels my-arc-runners",
)


@dataclass(frozen=True)
class CiOptions(WorkflowOptions):
    """The options of `buildfarm ci`."""

    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Root of the repository. It contains matrix.yaml.")
    ] = Path()
    as_json: JsonOption = False


def ci(options: CiOptions) -> None:
    """Write workflows for GitHub Actions that build, test on GPUs and publish.

    The files are buildfarm.yml, buildfarm-shard.yml, buildfarm-wheel.yml and buildfarm-torch.yml in .github/workflows.
    A pull request builds the newest cell of each extension. Every night, everything is built and published. Every
    Monday, an issue is opened if there is a new torch. Pull requests of forks start no job on a GPU runner.
    """
    levels_of(options.require)
    written = run_ci(options.directory, options)
    if options.as_json:
        print_data(json.dumps({"files": [str(path) for path in written]}) + "\n")
        return
    next_step = (
        f"Before the first run, make the environment {options.environment} in the settings of the repository on GitHub,"
        " and allow only the default branch to deploy to it."
    )
    print_data("\n".join([*(f"wrote {path}" for path in written), next_step]) + "\n")


def run_ci(folder: Path, options: WorkflowOptions) -> list[Path]:
    """Write the workflows below `folder`, the root of a repository with a matrix.yaml; return their paths.

    Raises UsageError before it writes anything: for a wrong matrix.yaml or option, for a plan that the workflows cannot
    build, and for a file of this name that `buildfarm ci` did not write.
    """
    _, _, plan = read_plan(folder / "matrix.yaml", Selection())
    shards_json(plan, Scope.FULL)
    files = {folder / path: text for path, text in workflows(options).items()}
    check_install(options.install, folder)
    for path in files:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
            raise UsageError(
                "`buildfarm ci` did not write this file, and does not overwrite it",
                Code.FILE_EXISTS,
                where=str(path),
                hints=["rename or delete the file, and run `buildfarm ci` again"],
            )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    return list(files)
