"""`buildfarm plan`."""

from __future__ import annotations

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
from builder.errors import UsageError
from builder.log import print_warning
from builder.matrix.config import MATRIX
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
NewTorchOption = Annotated[
    bool,
    typer.Option(
        "--new-torch",
        help="Print the torch releases newer than those of matrix.yaml, and the lines to add. Asks the package index"
        " for a release that this version of buildfarm does not know. Prints nothing without a new release.",
    ),
]


def plan(
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    arch: ArchOption = None,
    matrix: MatrixOption = MATRIX,
    explain: ExplainOption = False,
    github: GithubOption = None,
    new_torch: NewTorchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the builds, the cells that each build serves, and why the other cells are skipped. Builds nothing."""
    if new_torch:
        from builder.commands.ci.new_torch import new_torches  # noqa: PLC0415 - a plan asks no package index
        from builder.publish.ci.new_torch_text import new_torch_json, new_torch_text  # noqa: PLC0415

        if torch or cuda or python or ext or arch or explain or github:
            raise UsageError("takes no options besides --matrix and --json", where="--new-torch")
        found = new_torches(matrix)
        print_data(new_torch_json(found) if as_json else new_torch_text(found))
        return
    from builder.commands.building.preflight import other_versions  # noqa: PLC0415 - see `build`

    archs = architectures(arch)
    _, recipes, planned = read_plan(matrix, selection(torch, cuda, python, ext), archs)
    for problem in other_versions(recipes[name] for name in dict.fromkeys(one.extension for one in planned.builds)):
        print_warning(f"`buildfarm build` will fail: {problem}; {'; '.join(problem.hints)}")
    if github:
        print_data(shards_json(planned, github, archs))
        return
    hint = "" if arch else architectures_hint(planned.builds)
    print_data(plan_to_json(planned) if as_json else plan_text(planned, explain=explain, hint=hint))
