"""What a project's page shows: for each version, the level of each cell, and the wheels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from builder.gate.system.sizes import size_text
from builder.matrix.axes import Cell
from builder.publish.index.bar import Level
from builder.publish.index.entry import Entry

#: From the page of a project to the root of the index.
ROOT = "../../"


@dataclass(frozen=True)
class Row:
    """One torch and CUDA: the level for each Python of the table, `""` where nothing was tested."""

    torch: str
    cuda: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class WheelLine:
    """One wheel: its file name, links, and facts as text."""

    filename: str
    path: str
    size: str
    uploaded: str
    gpu_code: str
    yanked: str | None
    evidence: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class VersionCoverage:
    """One public version: its tested cells as a table, and its wheels.

    `installs` are (path of the index, version with local part), one for each CUDA variant.
    """

    version: str
    pythons: tuple[str, ...]
    rows: tuple[Row, ...]
    wheels: tuple[WheelLine, ...]
    installs: tuple[tuple[str, str], ...]


def coverage(entries: Sequence[Entry]) -> list[VersionCoverage]:
    """The versions of a project, the newest first."""
    by_version: dict[Version, list[Entry]] = {}
    for entry in entries:
        by_version.setdefault(Version(entry.version.public), []).append(entry)
    return [_version(str(version), by_version[version]) for version in sorted(by_version, reverse=True)]


def _version(version: str, entries: Sequence[Entry]) -> VersionCoverage:
    levels = _levels(entries)
    pythons = sorted({cell.python for cell in levels})
    pairs = sorted({(cell.torch, cell.cuda) for cell in levels}, reverse=True)
    rows = tuple(
        Row(str(torch), str(cuda), tuple(levels.get(Cell(torch, cuda, python), "") for python in pythons))
        for torch, cuda in pairs
    )
    installs = {
        (path, str(entry.version))
        for entry in entries
        if entry.yanked is None
        for path in (entry.farm.cuda if entry.farm else ()) or ("simple",)
    }
    ordered = sorted(entries, key=lambda entry: entry.filename)
    return VersionCoverage(
        version, tuple(map(str, pythons)), rows, tuple(map(_wheel, ordered)), tuple(sorted(installs, reverse=True))
    )


def _levels(entries: Sequence[Entry]) -> dict[Cell, str]:
    """The best level of each cell among wheels that are not yanked."""
    order = [str(level) for level in Level]
    found: dict[Cell, str] = {}
    for entry in entries:
        for name, level in (entry.farm.cells if entry.farm and entry.yanked is None else {}).items():
            cell = Cell.parse(name)
            found[cell] = max(level, found.get(cell, level), key=order.index)
    return found


def _wheel(entry: Entry) -> WheelLine:
    farm = entry.farm
    evidence = [("METADATA", f"{entry.path}.metadata")]
    if farm:
        evidence += [("proofs", farm.proofs), ("SBOM", farm.sbom), ("provenance", farm.statement)]
    return WheelLine(
        filename=entry.filename,
        path=entry.path,
        size=size_text(entry.size),
        uploaded=entry.uploaded[:10],
        gpu_code=", ".join(farm.archs) if farm else "",
        yanked=entry.yanked,
        evidence=tuple((name, path) for name, path in evidence if path),
    )
