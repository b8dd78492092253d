"""All checks of an environment, in the order in which a person should mend what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from builder.proofs.environment.checks.extensions import check_extensions
from builder.proofs.environment.checks.gpus import check_gpus, check_nvidia
from builder.proofs.environment.checks.library_path import check_library_path
from builder.proofs.environment.checks.tools import check_tools
from builder.proofs.environment.checks.torches import check_companions, check_torch
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.tested_versions import FIRST_SAFE, TESTED, unsafe, untested


def check_tested_versions(cures: Cures) -> Iterator[Finding]:
    """A note for each package; `buildfarm build` warns about the same packages of its own environment."""
    packages = cures.environment.visible
    bad = unsafe({name: package.version for name, package in packages.items() if name in FIRST_SAFE})
    for name, sentence in bad.items():
        why = "whoever has the keys of these authorities can pose as the server of a download"
        cure = cures.install(f"{name}>={FIRST_SAFE[name]}")
        yield Finding("unsafe-version", Severity.NOTE, sentence, why, (cure,))
    if "buildfarm" not in packages:
        return
    installed = {name: package.version for name, package in packages.items() if name not in bad}
    for name, sentence in untested(installed).items():
        cure = cures.install(name + TESTED[name].requirement)
        why = "buildfarm depends on what this program prints and writes, which changes between releases"
        yield Finding("untested-version", Severity.NOTE, sentence, why, (cure,))


_CHECKS: tuple[Callable[[Cures], Iterator[Finding]], ...] = (
    check_torch,
    check_gpus,
    check_companions,
    check_nvidia,
    check_library_path,
    check_extensions,
    check_tools,
    check_tested_versions,
)


def judge(cures: Cures) -> tuple[Finding, ...]:
    """The findings about an environment: faults first, then notes; both in the order of the checks."""
    found = [finding for check in _CHECKS for finding in check(cures)]
    return tuple(sorted(found, key=lambda finding: finding.level is Severity.NOTE))
