"""`buildfarm publish`: put wheels whose proofs reach a level into an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from builder.commands.building.published_builds import PublishedBuilds
from builder.commands.index.verification import Verification
from builder.errors import NothingSelectedError, UsageError
from builder.hashing import sha256_of
from builder.matrix.config import MATRIX, Recipe, Selection
from builder.matrix.load import load_matrix, load_recipes, read_plan
from builder.proof import Proof
from builder.publish.index.bar import Level, shortfalls
from builder.publish.index.entry import Entry
from builder.publish.index.new_wheel import merged, new_wheel, proofs_beside
from builder.publish.index.repository import ALL, ConflictError, NewWheel, paths_of
from builder.publish.people.project_plan import ProjectPlan, project_plans
from builder.result import PublishOutcome, PublishResult
from builder.store import Store


class Target(Protocol):
    """Where wheels are published: a `Repository`, or a server that has one."""

    def published(self, project: str, filename: str) -> Entry | None:
        """The entry of a wheel; None if it is not published."""

    def add(self, new: NewWheel) -> bool:
        """Publish a wheel; False if it was published before. Raises ConflictError with the reason why not."""


def publish_wheels(
    target: Target,
    wheels: Sequence[Path],
    store: Store,
    required: Sequence[Level],
    recipes: Sequence[Recipe] = (),
) -> list[PublishResult]:
    """Publish each wheel whose proofs reach every required level; refuse the others.

    A wheel that is published already stays published, also if its proofs no longer reach the level. The proofs are
    those of the store and those in the file beside the wheel, and those of the checks of `verify` that are not among
    them; `recipes` may accept their findings. Raises UsageError for a wheel that cannot be read; no
    wheel is published then.
    """
    if not wheels:
        raise NothingSelectedError(
            "there is no wheel to publish",
            hints=["run `buildfarm build` first, or name the wheels: `buildfarm publish WHEEL --to index`"],
        )
    verification = Verification(store, recipes)
    proven = [(wheel, verification.added(wheel, _proofs(wheel, store))) for wheel in wheels]
    ready = [(new_wheel(wheel, proofs), proofs) for wheel, proofs in proven]
    results = []
    for new, proofs in ready:
        results.append(publish_wheel(target, new, proofs, required))
        if results[-1].outcome is not PublishOutcome.REFUSED:
            PublishedBuilds(store).remember(new.wheel, new.entry.sha256)
    return results


def recipes_of(matrix: Path | None) -> tuple[Recipe, ...]:
    """The recipes of a matrix; None: of `matrix.yaml` if there is one. Raises UsageError for a wrong file."""
    path = matrix or MATRIX
    return load_recipes(load_matrix(path)) if matrix or path.is_file() else ()


def plans_of(matrix: Path | None) -> dict[str, ProjectPlan]:
    """What a matrix plans for each project; None: `matrix.yaml` if there is one. Raises UsageError for a wrong file."""
    path = matrix or MATRIX
    if matrix is None and not path.is_file():
        return {}
    try:
        _, _, plan = read_plan(path, Selection())
    except NothingSelectedError:  # every wheel of the matrix is an official one
        return {}
    return project_plans(plan)


def publish_wheel(target: Target, new: NewWheel, proofs: Sequence[Proof], required: Sequence[Level]) -> PublishResult:
    """Publish a wheel if these proofs reach every required level; otherwise refuse it."""
    cells = new.entry.farm.cells if new.entry.farm else {}
    reasons = [reason for level in required for reason in shortfalls(proofs, level)]
    if reasons:
        published = target.published(new.entry.project, new.wheel.name)
        same = published is not None and published.sha256 == new.entry.sha256  # its page keeps its proofs
        outcome = PublishOutcome.UNCHANGED if same else PublishOutcome.REFUSED
        return PublishResult(new.wheel.name, outcome, cells, reasons=tuple(dict.fromkeys(reasons)), below_level=True)
    try:
        outcome = PublishOutcome.PUBLISHED if target.add(new) else PublishOutcome.UNCHANGED
    except ConflictError as error:
        return PublishResult(new.wheel.name, PublishOutcome.REFUSED, cells, reasons=(error.sentence, *error.hints))
    return PublishResult(new.wheel.name, outcome, cells, (ALL, *paths_of(new.entry)))


def _proofs(wheel: Path, store: Store) -> list[Proof]:
    if not wheel.is_file():
        raise UsageError("there is no such file", where=str(wheel))
    sha256 = sha256_of(wheel)
    return merged(store.proofs(sha256), proofs_beside(wheel, sha256))
