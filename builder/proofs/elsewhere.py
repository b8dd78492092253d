"""Cells that are had in containers, as a matrix declares their images; what a run on this machine alone never loads."""

from __future__ import annotations

from builder.images.abandoned import end_abandoned
from builder.images.container import LABEL
from builder.images.engine import Engine
from builder.images.lock import lock_path, read_lock
from builder.images.specs import Choice
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix
from builder.proofs.container import ContainerCells
from builder.store import Store
from builder.wheels.environment import Environments


def container_cells(matrix: Matrix, store: Store, environments: Environments) -> ContainerCells:
    """Containers of the cells' runtime images, once those that killed farms left are ended.

    Raises MissingToolError when there is no container engine.
    """
    engine = Engine()
    if problem := engine.problem():
        raise problem
    end_abandoned(engine, store, LABEL)
    return ContainerCells(engine, store, Choice(matrix, Compat.load(), read_lock(lock_path(matrix.path))), environments)
