"""Versions of buildfarm's own dependencies that were not tested with it, if the environment contains buildfarm."""

from __future__ import annotations

from collections.abc import Iterator

from builder.proofs.environment.cures import Cures
from builder.proofs.environment.finding import Finding, Level
from builder.tested_versions import TESTED, untested


def check_tested_versions(cures: Cures) -> Iterator[Finding]:
    """A note for each package; `buildfarm build` warns about the same packages."""
    packages = cures.environment.visible
    if "buildfarm" not in packages:
        return
    installed = {name: package.version for name, package in packages.items() if name in TESTED}
    for name, sentence in untested(installed).items():
        cure = cures.install(name + TESTED[name].requirement)
        why = "buildfarm depends on what this program prints and writes, which changes between releases"
        yield Finding("untested-version", Level.NOTE, sentence, why, (cure,))
