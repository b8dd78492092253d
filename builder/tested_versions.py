"""The versions of other packages that this release of buildfarm was tested with.

buildfarm depends on more of these packages than their documented interface: on what they print, on the files that they
write, on their exit statuses. So a release that keeps their interface can still break buildfarm.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from shlex import quote

from packaging.version import Version


@dataclass(frozen=True)
class VersionRange:
    """The oldest and the newest version of a package that the tests ran with."""

    oldest: str
    newest: str


#: By name of the package. `python -m tests.benchmarks.cibuildwheel_versions` builds with both ends.
TESTED = {"cibuildwheel": VersionRange("4.0.0", "4.3.5")}


def untested(names: Iterable[str] = TESTED) -> dict[str, str]:
    """For each package whose installed version was not tested: a sentence that says so."""
    found = {}
    for name in names:
        installed, tested = version(name), TESTED[name]
        if Version(installed) > Version(tested.newest):
            relation = "newer"
        elif Version(installed) < Version(tested.oldest):
            relation = "older"
        else:
            continue
        found[name] = (
            f"{name} {installed} is {relation} than the versions that buildfarm was tested with"
            f" ({tested.oldest} to {tested.newest})"
        )
    return found


def hints(*names: str) -> list[str]:
    """For an error that one of these packages may have caused: how to install the newest tested version."""
    python = quote(sys.executable)
    return [
        f"{sentence}; install a tested version:"
        f" `{python} -m uv pip install --python {python} {name}=={TESTED[name].newest}`"
        for name, sentence in untested(names).items()
    ]
