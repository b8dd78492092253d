"""One wheel as an index lists it: a file object of PEP 691, with the keys that buildfarm adds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Self

from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pydantic import TypeAdapter

from builder.matrix.axes import Cell
from builder.matrix.local_version import LocalVersion, read_local
from builder.wheelfile.compatibility import admits

#: PEP 691 reserves keys that start with an underscore for the index itself.
OWN_KEY = "_buildfarm"


@dataclass(frozen=True)
class FarmFacts:
    """What buildfarm says about a published wheel beyond the standards."""

    #: The CUDA variants under which the wheel is listed, such as ("cu130", "cu132"); empty: no CUDA, or unknown.
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
    #: Whether it may use CUDA, of a variant that is not known.
    cuda_unknown: bool = False
    #: The platform that the libraries need, such as `manylinux_2_34_x86_64`, where the tag promises no glibc; or "".
    platform: str = ""
    #: The lines of Requires-Dist that require torch; None: unknown, because an earlier version wrote the record.
    requires_torch: tuple[str, ...] | None = None
    #: What is known of the gradient of each op, by its name: a value of `publish.proof_lines.Gradient`.
    gradients: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without what is empty."""
        plain: dict[str, Any] = _FARM.dump_python(self, mode="json", exclude_defaults=True)
        return plain


_FARM = TypeAdapter(FarmFacts)


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

    @cached_property
    def local(self) -> LocalVersion:
        """What the local version says about torch and CUDA."""
        return read_local(self.version.local or "")

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells in which the wheel was tested, sorted."""
        return sorted(map(_cell_named, self.farm.cells)) if self.farm else []

    def tags_for(self, cell: Cell) -> list[Tag]:
        """The tags of the file name that suit the Python and the processor of a cell."""
        machine = cell.platform.machine
        return [tag for tag in parse_wheel_filename(self.filename)[3] if admits(tag, cell.python, machine)]

    def to_json(self) -> dict[str, Any]:
        """Return the file object of PEP 691 and 700; `url` is the path from the root of the index."""
        return {
            "filename": self.filename,
            "url": self.path,
            "hashes": {"sha256": self.sha256},
            "size": self.size,
            "upload-time": self.uploaded,
            # Not also `dist-info-metadata`, the first name of this key: pip 22.3 to 23.1 crash then (PEP 714).
            "core-metadata": {"sha256": self.metadata_sha256},
            **({"requires-python": self.requires_python} if self.requires_python else {}),
            **({"yanked": self.yanked or True} if self.yanked is not None else {}),
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
            farm=_FARM.validate_python(own) if own else None,
        )
        parse_wheel_filename(entry.filename)
        return entry


@lru_cache(maxsize=2**14)
def _cell_named(name: str) -> Cell:
    """The cell of a name; the wheels of a project name the same cells again and again."""
    return Cell.parse(name)


def project_of(filename: str) -> str:
    """The normalized project name of a wheel's file name; raises ValueError for a name that is no wheel's."""
    return canonicalize_name(parse_wheel_filename(filename)[0])
