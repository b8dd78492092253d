"""An official wheel from a package index: the file that pip would take for a cell, kept by its sha256."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, cpython_tags, platform_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.errors import MissingToolError
from builder.matrix.axes import Python
from builder.process import masked
from builder.wheels.environment import index_setting
from builder.wheels.index_file import Location, download, locate, sha256_of

_KIND = "wheel"


def fetch_wheel(project: str, version: str, python: Python, *, cache: Path, index: Sequence[str] = ()) -> Path:
    """The wheel of this project and version for this Python on this machine, downloaded the first time.

    It is kept as `<cache>/wheels/<sha256>/<file name>`; `index` are URLs that are asked first.
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
                f"the {location.name} that came has sha256 {found}, the index lists it with {location.sha256}",
                where=where,
                hints=(f"where it was looked for: {index_setting()}",),
            )
        (folder / found).mkdir(exist_ok=True)
        return aside.rename(folder / found / location.name)


def download_wheel(url: str, *, cache: Path) -> Path:
    """The wheel at an address, kept by its sha256; raises MissingToolError when it cannot be had."""
    folder = cache / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    name = Path(unquote(urlsplit(url).path)).name
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        aside = Path(scratch, name or "unnamed")
        found = download(Location(url, aside.name, ""), aside, kind=_KIND, where=masked(url))
        (folder / found).mkdir(exist_ok=True)
        return aside.rename(folder / found / aside.name)


def fits(wheel: str, python: Python, *, any_libc: bool = False) -> bool:
    """Whether a wheel of this file name installs under this Python on this machine, by its tags.

    With `any_libc` a C library newer than this machine's is no obstacle, as it is none in a container.
    """
    try:
        tags = parse_wheel_filename(wheel)[3]
    except InvalidWheelFilename:
        return False
    ours = _tags(python)
    if not any_libc:
        return not tags.isdisjoint(ours)
    known = {(tag.interpreter, tag.abi) for tag in ours}
    platform = re.compile(rf"any|(?:manylinux\w*|linux)_{os.uname().machine}")
    return any((tag.interpreter, tag.abi) in known and platform.fullmatch(tag.platform) for tag in tags)


@cache
def _tags(python: Python) -> frozenset[Tag]:
    suffix = "t" if python.free_threaded else ""
    abi = f"cp{python.major}{python.minor}{suffix}"
    versions = (python.major, f"{python.major}{python.minor}")
    pure = [Tag(f"py{v}", "none", platform) for v in versions for platform in ("any", *platform_tags())]
    return frozenset([*cpython_tags((python.major, python.minor), abis=[abi]), *pure])


def _fitting(locations: Sequence[Location], python: Python, where: str) -> Location:
    for location in locations:
        if fits(location.name, python):
            return location
    names = ", ".join(location.name for location in locations[:3])
    raise MissingToolError(
        f"the index has no wheel of it for Python {python} on this machine; it has {names}",
        where=where,
        hints=("`--python X.Y` selects another", f"where it was looked for: {index_setting()}"),
    )
