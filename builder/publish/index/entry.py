"""One wheel as an index lists it: a file object of PEP 691, with the keys that buildfarm adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

#: PEP 691 reserves keys that start with an underscore for the index itself.
OWN_KEY = "_buildfarm"


@dataclass(frozen=True)
class FarmFacts:
    """What buildfarm says about a published wheel beyond the standards.

    Attributes:
        cuda: the CUDA variants under which the wheel is listed, such as ("cu130", "cu132"); empty: no CUDA.
        cells: the level that the proofs of each cell reach, by the cell's name: `none`, `static`, `cpu` or `gpu`.
        proofs: path of the proofs in the index, or "".
        statement: path of the unsigned in-toto statement in the index, or "".
        sbom: path of the SBOM in the index, or "".
        archs: GPU code that every library with GPU code contains, such as ("sm_80", "compute_90").
        built_here: whether buildfarm built the wheel; False for a wheel that somebody else built.
        gpus: the GPU models on which every op was checked in each cell, by the cell's name, such as ("sm_80", "sm_90").
        origin: where an adopted wheel came from: a URL, or `a file`; "" for other wheels.

    """

    cuda: tuple[str, ...] = ()
    cells: dict[str, str] = field(default_factory=dict)
    proofs: str = ""
    statement: str = ""
    sbom: str = ""
    archs: tuple[str, ...] = ()
    built_here: bool = False
    origin: str = ""
    gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `from_json` reads it."""
        return {
            "cuda": list(self.cuda),
            "cells": dict(sorted(self.cells.items())),
            "proofs": self.proofs,
            "statement": self.statement,
            "sbom": self.sbom,
            "archs": list(self.archs),
            "built_here": self.built_here,
            **({"origin": self.origin} if self.origin else {}),
            **({"gpus": {cell: list(models) for cell, models in sorted(self.gpus.items())}} if self.gpus else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            tuple(map(str, data["cuda"])),
            {str(cell): str(level) for cell, level in data["cells"].items()},
            str(data["proofs"]),
            str(data["statement"]),
            str(data["sbom"]),
            tuple(map(str, data.get("archs", ()))),
            bool(data["built_here"]),
            str(data.get("origin", "")),
            {str(cell): tuple(map(str, models)) for cell, models in data.get("gpus", {}).items()},
        )


@dataclass(frozen=True)
class Entry:
    """One wheel of an index.

    Attributes:
        filename: the wheel's file name.
        path: path of the file from the root of the index.
        sha256: of the file, hex.
        size: bytes.
        uploaded: UTC time, ISO 8601 with microseconds and `Z`.
        requires_python: Requires-Python of METADATA, or "".
        metadata_sha256: of METADATA, hex.
        yanked: None; else why installers should not choose the wheel, maybe "" (PEP 592).
        provenance: URL of the PEP 740 provenance object, or "".
        farm: what buildfarm adds; None in the index of a `dist` folder.

    """

    filename: str
    path: str
    sha256: str
    size: int
    uploaded: str
    requires_python: str
    metadata_sha256: str
    yanked: str | None = None
    provenance: str = ""
    farm: FarmFacts | None = None

    @cached_property
    def project(self) -> str:
        """The normalized project name (PEP 503)."""
        return project_of(self.filename)

    @cached_property
    def version(self) -> Version:
        """The version of the file name."""
        return parse_wheel_filename(self.filename)[1]

    def to_json(self) -> dict[str, Any]:
        """Return the file object of PEP 691 and 700; `url` is the path from the root of the index."""
        return {
            "filename": self.filename,
            "url": self.path,
            "hashes": {"sha256": self.sha256},
            "size": self.size,
            "upload-time": self.uploaded,
            "core-metadata": {"sha256": self.metadata_sha256},
            "dist-info-metadata": {"sha256": self.metadata_sha256},
            **({"requires-python": self.requires_python} if self.requires_python else {}),
            **({"yanked": self.yanked or True} if self.yanked is not None else {}),
            **({"provenance": self.provenance} if self.provenance else {}),
            **({OWN_KEY: self.farm.to_json()} if self.farm else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        yanked = data.get("yanked", False)
        own = data.get(OWN_KEY)
        entry = cls(
            filename=str(data["filename"]),
            path=str(data["url"]),
            sha256=str(data["hashes"]["sha256"]),
            size=int(data["size"]),
            uploaded=str(data["upload-time"]),
            requires_python=str(data.get("requires-python", "")),
            metadata_sha256=str(data["core-metadata"]["sha256"]),
            yanked=None if yanked is False else "" if yanked is True else str(yanked),
            provenance=str(data.get("provenance", "")),
            farm=FarmFacts.from_json(own) if own else None,
        )
        parse_wheel_filename(entry.filename)
        return entry


def project_of(filename: str) -> str:
    """The normalized project name of a wheel's file name; raises ValueError for a name that is no wheel's."""
    return canonicalize_name(parse_wheel_filename(filename)[0])
