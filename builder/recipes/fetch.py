"""Fetch a source and pin it: an exact version and sha256, or a full commit. Nothing of it is executed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidSdistFilename, parse_sdist_filename

from builder.errors import UsageError
from builder.matrix.config import GitSource, PathSource, Recipe, SdistSource, Source
from builder.recipes.reference import FolderReference, GitReference, ProjectReference, Reference
from builder.untrusted.masking import mask_credentials
from builder.wheels.sources.git import resolve_revision
from builder.wheels.sources.index import download
from builder.wheels.sources.prepare import prepare_source, project_folder
from builder.wheels.sources.sdist import locate_sdist

_KINDS = {GitReference: "git repository", FolderReference: "folder", ProjectReference: "source distribution"}


@dataclass(frozen=True)
class PinnedSource:
    """A source that always means the same files."""

    #: What the recipe names.
    source: Source
    #: The source for a comment: `torch-scatter==2.1.2`.
    label: str
    #: `source distribution`, `git repository` or `folder`.
    kind: str
    #: The name if the source does not state one.
    default_name: str


def pin(reference: Reference) -> PinnedSource:
    """Pin a source; asks the index or the repository.

    Raises UsageError if there is no such project, version or revision, MissingToolError without network or git.
    """
    kind = _KINDS[type(reference)]
    match reference:
        case ProjectReference():
            source = _pin_sdist(reference)
            return PinnedSource(source, f"{source.project}=={source.version}", kind, source.project)
        case GitReference(url=url, revision=revision, subdirectory=subdirectory):
            commit = resolve_revision(url, revision)
            label = mask_credentials(url) + (f"@{revision}" if revision else "")
            name = (subdirectory or url).rstrip("/").rpartition("/")[2].removesuffix(".git")
            return PinnedSource(GitSource(url, commit, subdirectory), label, kind, name)
        case FolderReference(path=path):
            return PinnedSource(PathSource(path.resolve()), str(path), kind, path.resolve().name)


def unpack_source(pinned: PinnedSource, target: Path, *, cache: Path) -> Path:
    """Fill the empty folder `target` with the source; returns the folder to build. Raises as `prepare_source` does."""
    recipe = Recipe(name=pinned.default_name, version="0", folder=target, source=pinned.source)
    prepare_source(recipe, target, cache=cache)
    return project_folder(recipe, target)


def _pin_sdist(reference: ProjectReference) -> SdistSource:
    try:
        location = locate_sdist(reference.project, reference.version)
    except UsageError as error:
        hints = [*error.hints, "if the project publishes no source distribution, name its git repository: https://…"]
        raise UsageError(error.sentence, where=error.where, hints=hints) from None
    try:
        version = reference.version or str(parse_sdist_filename(location.name)[1])
    except InvalidSdistFilename:
        raise UsageError(
            f"the newest file of the project has no readable version: {location.name}",
            where=reference.project,
            hints=[f"pass {reference.project}==VERSION"],
        ) from None
    sha256 = location.sha256
    if not sha256:  # an index without hashes
        with tempfile.TemporaryDirectory() as folder:
            sha256 = download(location, Path(folder, "sdist"), kind="source distribution", where=reference.project)
    return SdistSource(reference.project, version, sha256)
