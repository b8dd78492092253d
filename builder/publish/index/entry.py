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
    """What buildfarm says about a published wheel beyond the standards."""

    #: The CUDA variants under which the wheel is listed, such as ("cu130", "cu132"); empty: no CUDA.
    cuda: tuple[str, ...] = ()
    #: The level that the proofs of each cell reach, by the cell's name: `none`, `static`, `cpu` or `gpu`.
    cells: dict[str, str] = field(default_factory=dict)
    #: The paths of the proofs, the unsigned in-toto statement and the SBOM in the index, or "".
    proofs: str = ""
    statement: str = ""
    sbom: str = ""
    #: GPU code that every library with GPU code contains, such as ("sm_80", "compute_90").
    archs: tuple[str, ...] = ()
    #: False for a wheel that somebody else built.
    built_here: bool = False
    #: Where an adopted wheel came from: a URL, or `a file`; "" for other wheels.
    origin: str = ""
    #: The GPU models on which every op was checked in each cell, by the cell's name, such as ("sm_80", "sm_90").
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
    """One wheel of an index."""

    filename: str
    #: From the root of the index.
    path: str
    #: Of the file, hex.
    sha256: str
    #: Bytes.
    size: int
    #: UTC time, ISO 8601 with microseconds and `Z`.
    uploaded: str
    #: Requires-Python of METADATA, or "".
    requires_python: str
    metadata_sha256: str
    #: None; else why installers should not choose the wheel, maybe "" (PEP 592).
    yanked: str | None = None
    #: URL of the PEP 740 provenance object, or "".
    provenance: str = ""
    #: None in the index of a `dist` folder.
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
