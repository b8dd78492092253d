"""Where `smoke` tests wheels."""

from __future__ import annotations

from builder.matrix.config import Matrix
from builder.proofs.cells.cell_environment import CellEnvironments
from builder.proofs.cells.local import LocalEnvironments
from builder.store import Store
from builder.wheels.toolchain.environments import Environments


def cell_environments(
    executor: str, matrix: Matrix, store: Store, *, python_downloads: bool, pull: bool
) -> CellEnvironments:
    """Where the cells run: in uv environments on this machine or in containers.

    Raises MissingToolError when containers are wanted and there is no container engine.
    """
    environments = Environments(store, matrix.torch_index, python_downloads=python_downloads)
    if executor == "local":
        return LocalEnvironments(environments)
    # The Docker SDK loads slowly, and a local run does not need it.
    from builder.proofs.cells.container import container_environments  # noqa: PLC0415

    return container_environments(matrix, store, environments, pull=pull)
