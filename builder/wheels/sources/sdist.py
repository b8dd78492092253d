"""Source distributions from the package index, by version and sha256. No code in them is executed here."""

from __future__ import annotations

import tempfile
from pathlib import Path

from builder.errors import UsageError
from builder.hashing import sha256_of
from builder.matrix.config import SdistSource
from builder.wheels.sources.index import Location, download, locate
from builder.wheels.toolchain.uv import index_setting

_KIND = "source distribution"
# The sdist may require a newer Python than buildfarm's own; the plan decides which Python builds it.
_ANY_PYTHON = ("--no-binary=:all:", "--python-version=3.99")


def fetch_sdist(source: SdistSource, *, cache: Path) -> Path:
    """Return the verified archive `<cache>/sdists/<sha256>/<file name>`, downloading it the first time.

    Raises UsageError when the index has no such source distribution or its digest is not the recipe's, and
    MissingToolError when the index or the file cannot be reached.
    """
    wanted = source.sha256.lower()
    folder = cache / "sdists" / wanted
    for kept in sorted(folder.glob("*")) if folder.is_dir() else []:
        if sha256_of(kept) == wanted:
            return kept
        kept.unlink()  # damaged on disk: the folder's name is the expected digest
    location = locate_sdist(source.project, source.version)
    if location.sha256 and location.sha256 != wanted:
        raise _mismatch(source, location.sha256, f"the index lists {location.name} with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
        aside = Path(scratch, location.name)
        found = download(location, aside, kind=_KIND, where=f"{source.project} {source.version}")
        if found != wanted:
            raise _mismatch(source, found, f"the downloaded {location.name} has")
        folder.mkdir(exist_ok=True)
        return aside.rename(folder / location.name)


def locate_sdist(project: str, version: str) -> Location:
    """Where the index has the source distribution of a version, or of the newest version if `version` is empty.

    Raises UsageError when there is none, MissingToolError when the index cannot be reached.
    """
    return locate(f"{project}=={version}" if version else project, _KIND, *_ANY_PYTHON)[0]


def _mismatch(source: SdistSource, found: str, who: str) -> UsageError:
    return UsageError(
        f"{who} sha256 {found}, but the recipe has {source.sha256.lower()}; the archive was not opened",
        where=f"{source.project} {source.version}",
        hints=(
            "find out why the archive changed before you change `sha256` in the recipe",
            f"the index is {index_setting()}",
        ),
    )
