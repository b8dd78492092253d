"""All checks of an environment, in the order in which a person should mend what they find."""

from collections.abc import Callable, Iterator

from builder.proofs.environment.checks import machine, packages, torches
from builder.proofs.environment.checks.extensions import check_extensions
from builder.proofs.environment.cures import Cures, Finding, Severity, note
from builder.proofs.environment.facts import TorchInstall
from builder.tested_versions import FIRST_SAFE, unsafe

#: Each takes the torch that Python imports.
_CHECKS: tuple[Callable[[Cures, TorchInstall], Iterator[Finding]], ...] = (
    torches.check_path,
    torches.check_records,
    torches.check_installers,
    torches.check_requirements,
    torches.check_files,
    torches.check_backends,
    torches.check_leftovers,
    torches.check_uv,
    machine.check_gpus,
    packages.check_companions,
    packages.check_nvidia,
    torches.check_library_path,
    check_extensions,
)


def judge(cures: Cures) -> tuple[Finding, ...]:
    """The findings about an environment: faults first, then notes; both in the order of the checks."""
    torch = cures.environment.torch
    found = [finding for check in _CHECKS for finding in check(cures, torch)] if torch else [torches.no_torch(cures)]
    return tuple(sorted([*found, *check_safe_versions(cures)], key=lambda one: one.level is Severity.NOTE))


def check_safe_versions(cures: Cures) -> Iterator[Finding]:
    """A note for each package; `buildfarm build` warns about the same ones in its own environment, and about more."""
    visible = cures.environment.visible
    for name, sentence in unsafe({name: visible[name].version for name in FIRST_SAFE if name in visible}).items():
        why = "whoever has the keys of these authorities can pose as the server of a download"
        yield note("unsafe-version", sentence, why, (cures.install(f"{name}>={FIRST_SAFE[name]}"),))
