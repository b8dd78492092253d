"""`buildfarm index mirror`: copy wheels of another index, with their proofs, yanks and status."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.commands.index.manage import open_index
from builder.errors import NothingSelectedError, UsageError
from builder.log import print_line
from builder.publish.index.entry import Entry
from builder.publish.index.mirror.source import FarmSource, Offer, Source
from builder.publish.index.new_wheel import new_wheel, proofs_beside
from builder.publish.index.repository import ALL, ConflictError, Repository, paths_of
from builder.publish.index.wheel_entry import check_file_name
from builder.result import PublishOutcome, PublishResult
from builder.store import Store
from builder.wheelfile.limits import MAX_DIST_INFO


@dataclass(frozen=True)
class Mirror:
    """One run of `buildfarm index mirror`.

    Attributes:
        source: the index to copy from.
        repository: the index to copy to.
        store: has the scratch folder of a download; the next run removes what a killed run left in it.
        max_size: of a wheel, bytes.

    """

    source: Source
    repository: Repository
    store: Store
    max_size: int

    def run(self, wanted: Sequence[Requirement]) -> list[PublishResult]:
        """Copy the wheels of these projects and versions; without any, of all projects.

        A wheel that is there is not downloaded again. Raises NothingSelectedError if the source has no wheel of a
        requirement, and MissingToolError if it does not answer; wheels that were copied before stay.
        """
        self.store.clear_abandoned()
        results = []
        for requirement in wanted or [Requirement(project) for project in self.source.projects()]:
            project = canonicalize_name(requirement.name)
            offers, status = self.source.offers(project)
            chosen = [one for one in offers if requirement.specifier.contains(one.version, prereleases=True)]
            if wanted and not chosen:
                raise NothingSelectedError(
                    "the source has no wheel of this project and version", where=str(requirement)
                )
            entries = {entry.filename: entry for entry in self.repository.entries(project)}
            results += [
                self._mirror(offer, entries) for offer in sorted(chosen, key=lambda one: (one.version, one.filename))
            ]
            if status.name != "active" and status != self.repository.status(project):
                self.repository.set_status(project, status)
        return results

    def _mirror(self, offer: Offer, entries: dict[str, Entry]) -> PublishResult:
        """Copy one wheel; a yank of the source is copied too, and a yank of this index stays."""
        there = entries.get(offer.filename)
        try:
            if there and offer.sha256 and there.sha256 != offer.sha256:
                raise ConflictError("the index has a different wheel of this name; a published file never changes")
            entry = there or self._copy(offer)
        except (ConflictError, UsageError) as error:
            return PublishResult(offer.filename, PublishOutcome.REFUSED, {}, reasons=(error.sentence,))
        if offer.yanked is not None and offer.yanked != entry.yanked:
            self.repository.yank(offer.filename, offer.yanked)
        outcome = PublishOutcome.UNCHANGED if there else PublishOutcome.PUBLISHED
        return PublishResult(offer.filename, outcome, entry.farm.cells if entry.farm else {}, (ALL, *paths_of(entry)))

    def _copy(self, offer: Offer) -> Entry:
        """Download, check and publish a wheel; raises UsageError or ConflictError with the reason why not."""
        check_file_name(offer.filename)
        if not offer.sha256:
            raise UsageError("the source names no sha256 of this wheel, so it cannot be checked")
        if offer.size is not None and offer.size > self.max_size:
            raise UsageError(f"the wheel has {offer.size} bytes, more than --max-size allows")
        self.repository.refuse_other_spelling(offer.filename)
        print_line(f"downloading {offer.filename}")
        with self.store.work(f"mirror-{offer.sha256[:16]}") as folder:
            wheel = folder / offer.filename
            found = self._download(offer.place, wheel, self.max_size)
            if found != offer.sha256:
                raise UsageError(f"the sha256 of the download is {found}, but the source says {offer.sha256}")
            for suffix, place in offer.attached.items():
                self._download(place, wheel.with_name(wheel.name + suffix), MAX_DIST_INFO)
            new = new_wheel(wheel, proofs_beside(wheel, found))
            farm = replace(new.entry.farm, built_here=offer.built_here) if new.entry.farm else None
            entry = replace(new.entry, uploaded=offer.uploaded or new.entry.uploaded, farm=farm)
            self.repository.add(replace(new, entry=entry), update=False)
        return entry

    def _download(self, place: str, to: Path, limit: int) -> str:
        """Write a file of the source; return its sha256. Raises UsageError for a missing and for a larger file."""
        digest, size = hashlib.sha256(), 0
        try:
            with to.open("wb") as stream:
                for chunk in self.source.chunks(place):
                    size += len(chunk)
                    if size > limit:
                        raise UsageError(f"{to.name} is larger than {limit} bytes")
                    digest.update(chunk)
                    stream.write(chunk)
        except FileNotFoundError:
            raise UsageError(f"the source lists {to.name}, but has no such file") from None
        return digest.hexdigest()


def open_source(place: str) -> Source:
    """The index at a URL, in a folder or in a bucket; raises UsageError and MissingToolError as `open_index` does."""
    if place.startswith(("http://", "https://")):
        from builder.publish.index.mirror.web import WebSource  # noqa: PLC0415 - see `build`

        return WebSource(place)
    return FarmSource(open_index(place))


def requirements_of(texts: Sequence[str]) -> Iterator[Requirement]:
    """Projects, maybe with versions, such as `my_ext` and `my_ext>=1.2`; raises UsageError."""
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:
            raise UsageError("this is no project; write NAME, or NAME>=VERSION", where=text) from None
