"""The packages that `verify --beside` names: wheels, and the packages of an environment. None of them is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.commands.index.foreign_wheels import ForeignWheels
from builder.errors import UsageError
from builder.log import print_warning
from builder.proofs.verify.clash import Neighbour, files_of
from builder.wheelfile.archive import WheelContents
from builder.wheelfile.exports import read_exports
from builder.wheelfile.facts import WheelFacts, facts_of, open_wheel, read_facts
from builder.wheelfile.installed import InstalledWheel

#: torch and what it brings: every extension is made to share their libraries. The check `grafted` knows their names.
_SHARED = re.compile(r"torch|triton|nvidia-.+|cuda-.+")


def neighbours(text: str, finder: ForeignWheels) -> Iterator[Neighbour]:
    """The packages that one argument names. Raises UsageError for an argument that names none."""
    if sites := _site_packages(Path(text)):
        for dist_info in (path for site in sites for path in sorted(site.glob("*.dist-info"))):
            if not _SHARED.fullmatch(canonicalize_name(dist_info.stem.partition("-")[0])):
                yield from _installed(dist_info)
        return
    for found in finder.find([text]):
        facts = read_facts(found.path)
        with open_wheel(found.path) as wheel:
            yield _neighbour(wheel, facts)


def _site_packages(folder: Path) -> list[Path]:
    """The folders with packages of an environment; empty for what is no environment."""
    inside = sorted(folder.glob("lib/python3*/site-packages"))
    return inside or ([folder] if any(folder.glob("*.dist-info")) else [])


def _installed(dist_info: Path) -> Iterator[Neighbour]:
    try:
        installed = InstalledWheel(dist_info)
        yield _neighbour(installed, facts_of(installed, installed.digest, installed.size))
    except UsageError as error:
        print_warning(f"{dist_info.name} was not compared: {error.sentence}")


def _neighbour(wheel: WheelContents, facts: WheelFacts) -> Neighbour:
    exports = read_exports(wheel, facts.libraries)
    return Neighbour(canonicalize_name(facts.name), f"{facts.name} {facts.version}", tuple(exports), files_of(wheel))
