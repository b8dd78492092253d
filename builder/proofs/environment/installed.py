"""The facts of an installed package, as `builder.wheelfile.facts` has them for a wheel."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import UsageError
from builder.proofs.environment.facts import Environment, Package
from builder.proofs.foreign.claimed_cells import uses_torch
from builder.wheelfile.facts import WheelFacts, read_library


@dataclass(frozen=True)
class Extension:
    """An installed package with libraries that use torch."""

    #: The package.
    package: Package
    #: Its libraries, as those of a wheel.
    facts: WheelFacts
    #: Why libraries could not be read.
    damaged: tuple[str, ...]


def torch_extensions(environment: Environment) -> list[Extension]:
    """The packages whose libraries use torch, without torch itself and NVIDIA's packages."""
    found = (
        installed(package)
        for name, package in environment.visible.items()
        if package.libraries and name != "torch" and not name.startswith(("nvidia-", "triton"))
    )
    return [one for one in found if (one.facts.libraries or one.damaged) and uses_torch(one.facts)]


def installed(package: Package) -> Extension:
    """Read the libraries of a package. Missing files and files of other formats are left out."""
    libraries, damaged = [], []
    for path in sorted(package.libraries):
        file = package.folder / path
        if ".." in path or not file.is_file():
            continue
        try:
            library = read_library(path, file)
        except UsageError as error:
            damaged.append(f"{path}: {error.sentence}")
            continue
        if library is not None:
            libraries.append(library)
    facts = WheelFacts(
        filename=f"{package.name}-{package.version}",
        sha256="",
        size=0,
        name=package.name,
        version=package.version,
        tags=(),
        requires_dist=package.requires,
        requires_python="",
        libraries=tuple(libraries),
        files=tuple(sorted(package.libraries)),
    )
    return Extension(package, facts, tuple(damaged))
