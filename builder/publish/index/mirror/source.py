"""What a mirror needs of a source, and a source that is an index of buildfarm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from builder.publish.index.entry import FarmFacts
from builder.publish.index.new_wheel import PROOFS_SUFFIX
from builder.publish.index.pages import Status
from builder.publish.index.repository import Repository
from builder.publish.provenance import SUFFIX as STATEMENT_SUFFIX


@dataclass(frozen=True)
class Offer:
    """A wheel that a source has.

    Attributes:
        filename: the wheel's file name.
        place: where the source has the file: a name in its objects, or a URL.
        sha256: of the file, hex; empty if the source does not say.
        size: bytes, or None if the source does not say.
        uploaded: when it was published there, as PEP 700 writes it, or "".
        yanked: None; else why installers should not choose it, maybe "".
        built_here: whether the source says that buildfarm built the wheel.
        attached: where the source has the files beside the wheel, by the suffix of their name.

    """

    filename: str
    place: str
    sha256: str
    size: int | None = None
    uploaded: str = ""
    yanked: str | None = None
    built_here: bool = False
    attached: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        """The version of the file name."""
        return parse_wheel_filename(self.filename)[1]


class Source(Protocol):
    """An index that a mirror copies wheels from."""

    def projects(self) -> list[str]:
        """The normalized names of all projects."""

    def offers(self, project: str) -> tuple[list[Offer], Status]:
        """The wheels of a project and its status; no wheel for an unknown project."""

    def chunks(self, place: str) -> Iterator[bytes]:
        """Contents of a file in parts; raises FileNotFoundError."""


class FarmSource:
    """An index of buildfarm in a folder or bucket."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def projects(self) -> list[str]:
        """The normalized names of all projects."""
        return self._repository.projects()

    def offers(self, project: str) -> tuple[list[Offer], Status]:
        """The wheels of a project and its status."""
        offers = [
            Offer(
                filename=entry.filename,
                place=entry.path,
                sha256=entry.sha256,
                size=entry.size,
                uploaded=entry.uploaded,
                yanked=entry.yanked,
                built_here=bool(entry.farm and entry.farm.built_here),
                attached=attached_files(entry.farm),
            )
            for entry in self._repository.entries(project)
        ]
        return offers, self._repository.status(project)

    def chunks(self, place: str) -> Iterator[bytes]:
        """Contents of a file in parts; raises FileNotFoundError."""
        return self._repository.objects.chunks(place)


def attached_files(farm: FarmFacts | None) -> dict[str, str]:
    """The paths of the proofs and the statement of a wheel in its index, by suffix. The SBOM is inside the wheel."""
    paths = {PROOFS_SUFFIX: farm.proofs, STATEMENT_SUFFIX: farm.statement} if farm else {}
    return {suffix: path for suffix, path in paths.items() if path}
