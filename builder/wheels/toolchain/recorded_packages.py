"""The packages that the record of a wheel names: `rebuild` installs them, and whoever made the wheel chose them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.errors import Code, MissingToolError, UsageError
from builder.hashing import digest_of
from builder.store import Store
from builder.wheels.toolchain.uv import compile_requirements

_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9.!+_-]+)")


def check_pins(packages: Sequence[str], where: str) -> None:
    """Raise UsageError for a package that is not exactly `name==version`: a URL, a path, a range, a marker, an option.

    `where` names the wheel in the error.
    """
    for package in packages:
        match = _PIN.fullmatch(package)
        with suppress(InvalidVersion):
            if match and Version(match[2]):
                continue
        sentence = f"the record of the wheel names a package that is not an exact version: {package[:100]!r}"
        hint = "`rebuild` installs only packages of the form `name==version` from the package index"
        raise UsageError(sentence, Code.RECORD_NOT_USABLE, where=where, hints=[hint])


def wheels_only(packages: Sequence[str], build_requires: Sequence[str]) -> list[str]:
    """Options of uv with which it builds none of these packages from source, because that would execute their code.

    The packages that the recipe itself names in `build_requires` may be built.
    """
    own = {canonicalize_name(Requirement(text).name) for text in build_requires}
    names = sorted({canonicalize_name(package.partition("==")[0]) for package in packages} - own)
    return [f"--only-binary={name}" for name in names]


def check_needed(
    packages: Sequence[str], requirements: Sequence[str], options: Sequence[str], *, index: Sequence[str], store: Store
) -> None:
    """Raise MissingToolError for packages that the recipe does not need: a package may run code when Python starts.

    uv resolves the `requirements` of the recipe with the recorded `packages` (`name==version`) and installs nothing.
    `options` are further ones of `uv pip compile`, and `index` are URLs of indexes that are asked first.
    """
    job = f"recorded-{digest_of(list(packages))[:16]}"
    with store.work(job) as folder:
        constraints = folder / "recorded.txt"
        constraints.write_text("\n".join(packages) + "\n")
        arguments = ["--no-config", "--no-annotate", "--constraints", str(constraints), *options]
        log, owner = store.log("packages"), store.owner(job)
        resolved = compile_requirements(requirements, arguments, folder=folder, index=index, log=log, owner=owner)
    needed = {canonicalize_name(Requirement(line).name) for line in resolved.splitlines() if line.strip()}
    unneeded = [package for package in packages if canonicalize_name(package.partition("==")[0]) not in needed]
    if unneeded:
        raise MissingToolError(
            f"the record of the wheel names packages that the recipe does not need: {', '.join(unneeded[:5])}",
            Code.RECORD_DIFFERS,
            hints=[
                "do not trust the wheel: its record is not what a build of this recipe writes",
                "if a different version of buildfarm built the wheel, run that version",
            ],
        )
