"""`buildfarm plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    ArchOption,
    CudaOption,
    ExplainOption,
    ExtOption,
    JsonOption,
    MatrixOption,
    PythonOption,
    TorchOption,
    architectures,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.matrix.load import read_plan
from builder.matrix.plan_json import plan_to_json
from builder.publish.ci.shards import Scope, shards_json
from builder.publish.plan_text import architectures_hint, plan_text

EXAMPLES = examples(
    "buildfarm plan --torch 2.11 --cuda 13.0", "buildfarm plan --explain", "buildfarm plan --json > plan.json"
)

GithubOption = Annotated[
    Scope | None,
    typer.Option(
        "--github",
        help="Print the jobs for GitHub Actions as JSON: a list with a matrix for each 256 jobs. full: a job for each"
        " build. newest: a job for the newest cell of each extension.",
    ),
]


def plan(
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    arch: ArchOption = None,
    matrix: MatrixOption = Path("matrix.yaml"),
    explain: ExplainOption = False,
    github: GithubOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the builds, the cells that each build serves, and why the other cells are skipped. Builds nothing."""
    _, _, planned = read_plan(matrix, selection(torch, cuda, python, ext), architectures(arch))
    if github:
        print_data(shards_json(planned, github))
        return
    hint = "" if arch else architectures_hint(planned.builds)
    print_data(plan_to_json(planned) if as_json else plan_text(planned, explain=explain, hint=hint))
