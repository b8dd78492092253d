"""`buildfarm ci`: write the workflows of a project."""

from __future__ import annotations

from pathlib import Path

from builder.errors import UsageError
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.publish.ci.options import WorkflowOptions
from builder.publish.ci.shards import Scope, shards_json
from builder.publish.ci.workflows import MARK, workflows
from builder.store import write_atomic


def run_ci(folder: Path, options: WorkflowOptions) -> list[Path]:
    """Write the workflows below `folder`, the root of a repository with a matrix.yaml; return their paths.

    Raises UsageError before it writes anything: for a wrong matrix.yaml or option, for a plan that the workflows cannot
    build, and for a file of this name that `buildfarm ci` did not write.
    """
    _, _, plan = read_plan(folder / "matrix.yaml", Selection())
    shards_json(plan, Scope.FULL)
    files = {folder / path: text for path, text in workflows(options).items()}
    for path in files:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
            raise UsageError(
                "`buildfarm ci` did not write this file, and does not overwrite it",
                where=str(path),
                hints=["rename or delete the file, and run `buildfarm ci` again"],
            )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    return list(files)
