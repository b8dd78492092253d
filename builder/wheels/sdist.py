"""A source distribution from the package index, by version and sha256; nothing in it runs on the way."""

from __future__ import annotations

import tempfile
from pathlib import Path

from builder.errors import UsageError
from builder.matrix.config import SdistSource
from builder.wheels.environment import index_setting
from builder.wheels.index_file import download, locate, sha256_of

_KIND = "source distribution"
# The sdist may ask for a newer Python than the farm's own; which one builds it, the plan decides.
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
        kept.unlink()  # damaged on disk since; the name of its folder says what it should have been
    location = locate(f"{source.project}=={source.version}", _KIND, *_ANY_PYTHON)[0]
    if location.sha256 and location.sha256 != wanted:
        raise _mismatch(source, location.sha256, f"the index lists {location.name} with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
        aside = Path(scratch, location.name)
        found = download(location, aside, kind=_KIND, where=f"{source.project} {source.version}")
        if found != wanted:
            raise _mismatch(source, found, f"the {location.name} that came has")
        folder.mkdir(exist_ok=True)
        return aside.rename(folder / location.name)


def _mismatch(source: SdistSource, found: str, who: str) -> UsageError:
    return UsageError(
        f"{who} sha256 {found}, the recipe asks for {source.sha256.lower()}; nothing of it was opened",
        where=f"{source.project} {source.version}",
        hints=(
            "find out why it changed before changing the recipe's `sha256`",
            f"where it was looked for: {index_setting()}",
        ),
    )
