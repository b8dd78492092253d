"""Wheels of others, from a package index or a URL: kept by their sha256, nothing in them is executed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from builder.errors import Code, MissingToolError, UsageError
from builder.hashing import sha256_of
from builder.masking import mask_credentials
from builder.matrix.axes import Python
from builder.wheelfile.compatibility import is_compatible
from builder.wheelfile.limits import MAX_NAME
from builder.wheels.sources.index import Location, fetch, locate
from builder.wheels.toolchain.uv import index_setting

_KIND = "wheel"


@dataclass(frozen=True)
class FetchedWheel:
    """A downloaded wheel, and the URL that it came from, which may contain credentials."""

    path: Path
    url: str


class NoFittingWheelError(MissingToolError):
    """The index has this version, but no wheel for this Python on this machine."""


def fetch_wheel(project: str, version: str, python: Python, *, cache: Path, index: Sequence[str] = ()) -> FetchedWheel:
    """The wheel of this project and version for this Python on this machine, downloaded the first time.

    It is kept as `<cache>/wheels/<sha256>/<file name>`; `index` are URLs of indexes that are asked first.
    Raises UsageError when the index has no such version, NoFittingWheelError when it has no wheel for this Python, and
    MissingToolError when it cannot be reached.
    """
    where = f"{project} {version}"
    asked = ("--only-binary=:all:", f"--python-version={python.major}.{python.minor}")
    location = _fitting(locate(f"{project}=={version}", _KIND, *asked, index=index), python, where)
    return _fetch(location, "the index lists", cache=cache, where=where)


def exact_version(text: str) -> tuple[str, str]:
    """The project and the version of NAME==VERSION; raises UsageError."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        sentence = "this names no wheel; pass a file, a URL, or a project with its version, such as torchvision==0.26.0"
        raise UsageError(sentence, Code.VALUE_INVALID, where=text) from None
    if exact := re.fullmatch(r"==([^*]+)", str(requirement.specifier)):
        return requirement.name, exact[1]
    sentence = "the exact version is missing; pass NAME==VERSION, because a proof applies to one wheel"
    raise UsageError(sentence, Code.VALUE_INVALID, where=text)


def download_wheel(url: str, *, cache: Path) -> FetchedWheel:
    """The wheel at a URL, kept by its sha256.

    Raises UsageError for a URL that is not valid, MissingToolError when the wheel cannot be downloaded, and when it
    differs from `#sha256=…` at the end of the URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"this is not a valid URL: {error}", Code.VALUE_INVALID, where=mask_credentials(url)) from None
    name = Path(unquote(parts.path)).name.replace("\0", "")[-MAX_NAME:]
    hashed = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})(?:&|$)", parts.fragment)
    sha256 = hashed[1].lower() if hashed else ""
    location = Location(parts._replace(fragment="").geturl(), name or "unnamed", sha256)
    return _fetch(location, "the URL names", cache=cache, where=mask_credentials(url))


def _fetch(location: Location, who: str, *, cache: Path, where: str) -> FetchedWheel:
    """Download a wheel, compare it with its hash if there is one, and keep it; a kept wheel is not downloaded again."""
    folder = cache / "wheels"
    kept = folder / location.sha256 / location.name
    if location.sha256 and kept.is_file() and sha256_of(kept) == location.sha256:
        return FetchedWheel(kept, location.url)

    def mismatch(found: str) -> MissingToolError:
        sentence = f"the downloaded {location.name} has sha256 {found}, but {who} {location.sha256}"
        return MissingToolError(sentence, Code.SOURCE_DIFFERS, where=where)

    return FetchedWheel(fetch(location, folder, kind=_KIND, where=where, mismatch=mismatch), location.url)


def _fitting(locations: Sequence[Location], python: Python, where: str) -> Location:
    for location in locations:
        if is_compatible(location.name, python):
            return location
    names = ", ".join(location.name for location in locations[:3])
    raise NoFittingWheelError(
        f"the index has no wheel for Python {python} on this machine; it has {names}",
        Code.PACKAGE_NOT_FOUND,
        where=where,
        hints=("select a different Python with `--python X.Y`", f"the index is {index_setting()}"),
    )
