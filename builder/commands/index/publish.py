"""`buildfarm publish`: put wheels whose proofs reach a level into an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.errors import NothingSelectedError, UsageError
from builder.hashing import sha256_of
from builder.proof import Proof
from builder.publish.index.bar import Level, shortfalls
from builder.publish.index.new_wheel import merged, new_wheel, proofs_beside
from builder.publish.index.repository import ALL, ConflictError, NewWheel, Repository, paths_of
from builder.result import PublishOutcome, PublishResult
from builder.store import Store


def publish_wheels(
    repository: Repository, wheels: Sequence[Path], store: Store, required: Sequence[Level]
) -> list[PublishResult]:
    """Publish each wheel whose proofs reach every required level; refuse the others.

    A wheel that is published already stays published, also if its proofs no longer reach the level. The proofs are
    those of the store and those in the file beside the wheel. Raises UsageError for a wheel that cannot be read; no
    wheel is published then.
    """
    if not wheels:
        raise NothingSelectedError("there is no wheel to publish", hints=["run `buildfarm build` first"])
    proven = [(wheel, _proofs(wheel, store)) for wheel in wheels]
    ready = [(new_wheel(wheel, proofs), proofs) for wheel, proofs in proven]
    return [_publish(repository, new, proofs, required) for new, proofs in ready]


def _publish(
    repository: Repository, new: NewWheel, proofs: Sequence[Proof], required: Sequence[Level]
) -> PublishResult:
    cells = new.entry.farm.cells if new.entry.farm else {}
    reasons = [reason for level in required for reason in shortfalls(proofs, level)]
    if reasons:
        published = repository.published(new.entry.project, new.wheel.name)
        same = published is not None and published.sha256 == new.entry.sha256  # its page keeps its proofs
        outcome = PublishOutcome.UNCHANGED if same else PublishOutcome.REFUSED
        return PublishResult(new.wheel.name, outcome, cells, reasons=tuple(dict.fromkeys(reasons)))
    try:
        outcome = PublishOutcome.PUBLISHED if repository.add(new) else PublishOutcome.UNCHANGED
    except ConflictError as error:
        return PublishResult(new.wheel.name, PublishOutcome.REFUSED, cells, reasons=(error.sentence, *error.hints))
    return PublishResult(new.wheel.name, outcome, cells, (ALL, *paths_of(new.entry)))


def _proofs(wheel: Path, store: Store) -> list[Proof]:
    if not wheel.is_file():
        raise UsageError("there is no such file", where=str(wheel))
    sha256 = sha256_of(wheel)
    return merged(store.proofs(sha256), proofs_beside(wheel, sha256))
