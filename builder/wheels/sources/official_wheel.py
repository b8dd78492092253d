"""Official wheels from a package index: the file that pip would choose for a cell, kept by its sha256."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from builder.errors import MissingToolError
from builder.hashing import sha256_of
from builder.matrix.axes import Python
from builder.process import mask_credentials
from builder.wheelfile.compatibility import is_compatible
from builder.wheels.sources.index import Location, download, locate
from builder.wheels.toolchain.uv import index_setting

_KIND = "wheel"


def fetch_wheel(project: str, version: str, python: Python, *, cache: Path, index: Sequence[str] = ()) -> Path:
    """The wheel of this project and version for this Python on this machine, downloaded the first time.

    It is kept as `<cache>/wheels/<sha256>/<file name>`; `index` are URLs of indexes that are asked first.
    Raises UsageError when the index has no such wheel and MissingToolError when it cannot be reached.
    """
    where = f"{project} {version}"
    asked = ("--only-binary=:all:", f"--python-version={python.major}.{python.minor}")
    location = _fitting(locate(f"{project}=={version}", _KIND, *asked, index=index), python, where)
    folder = cache / "wheels"
    if location.sha256:
        kept = folder / location.sha256 / location.name
        if kept.is_file() and sha256_of(kept) == location.sha256:
            return kept
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        aside = Path(scratch, location.name)
        found = download(location, aside, kind=_KIND, where=where)
        if location.sha256 and found != location.sha256:
            raise MissingToolError(
                f"the downloaded {location.name} has sha256 {found}, but the index lists {location.sha256}",
                where=where,
                hints=(f"the index is {index_setting()}",),
            )
        (folder / found).mkdir(exist_ok=True)
        return aside.rename(folder / found / location.name)


def download_wheel(url: str, *, cache: Path) -> Path:
    """The wheel at a URL, kept by its sha256; raises MissingToolError when it cannot be downloaded."""
    folder = cache / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    name = Path(unquote(urlsplit(url).path)).name
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        aside = Path(scratch, name or "unnamed")
        found = download(Location(url, aside.name, ""), aside, kind=_KIND, where=mask_credentials(url))
        (folder / found).mkdir(exist_ok=True)
        return aside.rename(folder / found / aside.name)


def _fitting(locations: Sequence[Location], python: Python, where: str) -> Location:
    for location in locations:
        if is_compatible(location.name, python):
            return location
    names = ", ".join(location.name for location in locations[:3])
    raise MissingToolError(
        f"the index has no wheel for Python {python} on this machine; it has {names}",
        where=where,
        hints=("select a different Python with `--python X.Y`", f"the index is {index_setting()}"),
    )
