"""Records of builds: the toolchain, the record inside the wheel, and what the store keeps beside a wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from builder.errors import BuildfarmError, Code, UsageError, mask_credentials
from builder.formats import sha256_of
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import GitSource, PathSource, Recipe, SdistSource
from builder.matrix.plan import Build
from builder.untrusted import JsonError, parse_json, text, texts
from builder.wheelfile.archive import WheelFile


@dataclass(frozen=True)
class CudaSources:
    """The CUDA files of a source, so that a wheel without GPU code can be explained."""

    #: How many there are.
    files: int
    #: The files that no compiler command of the build's log names, and that no other file includes.
    never_compiled: tuple[str, ...] = ()
    #: The file that calls torch.cuda.is_available() during the build, such as `setup.py`; or empty.
    asks_for_gpu: str = ""


class Part(StrEnum):
    """A part of a toolchain: the value is its key in records and its name in messages."""

    #: Versions of what repairs the wheel.
    AUDITWHEEL = "auditwheel"
    CYCLONEDX = "cyclonedx-python-lib"  # in the records of earlier wheels
    PATCHELF = "patchelf"
    ZLIB = "zlib"
    #: Version of the front end that ran the build.
    CIBUILDWHEEL = "cibuildwheel"
    UV = "uv"
    #: Name and version of the C++ compiler, `g++ 12.2.0`; file name of the C compiler.
    CXX = "c++"
    CC = "cc"
    #: Version of nvcc, `13.0.88`; empty where none is known.
    NVCC = "nvcc"
    #: The requested CUDA, `CUDA 12.1`, when nvcc has a different minor version.
    REQUESTED_CUDA = "stands in for"  # the key in the records of earlier wheels
    #: The exact requirements of the build's environment.
    PACKAGES = "packages"
    #: The exact version of the Python, `3.12.1`.
    PYTHON_VERSION = "python"
    #: Version of the local compiler cache; images bring their own.
    SCCACHE = "sccache"
    #: Tag of the build image; name of its base image; the engine's id of the base image; digest of the base image's
    #: manifest in its registry, when the base is pinned.
    IMAGE = "image"
    BASE = "base"
    BASE_ID = "base id"
    BASE_DIGEST = "base digest"


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The exact identity of what compiles; part of the build's digest."""

    #: `local` or `docker`.
    executor: str
    #: The Python the build runs under.
    python: Python
    #: The exact requirements of the build's environment, `torch==2.11.0`.
    packages: tuple[str, ...] = ()
    #: The parts besides the packages; None: this toolchain has no such part.
    others: Mapping[Part, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Leave out the parts that are None."""
        object.__setattr__(self, "others", {part: text for part, text in self.others.items() if text is not None})

    def get(self, part: Part) -> str:
        """A part as text; empty without it."""
        return self.others.get(part) or ""

    def having(self, parts: Mapping[Part, str | None]) -> Toolchain:
        """The toolchain with these parts in place of its own."""
        return replace(self, others={**self.others, **parts})

    def parts(self) -> dict[Part, str]:
        """Every part that this toolchain has, as text, sorted by key."""
        found = {**self.others, Part.PACKAGES: " ".join(self.packages)}
        return {part: found[part] or "" for part in sorted(found)}


#: File name inside `.dist-info` of what says how the wheel was made: enough to rebuild it, without paths and times.
FILE = "buildfarm.json"

_SCHEMA = 2


@dataclass(frozen=True)
class PatchRecord:
    """One applied patch: its file name and the sha256 of its bytes."""

    name: str
    sha256: str


_ORIGINS: dict[str, type[SdistSource | GitSource]] = {"sdist": SdistSource, "git": GitSource}


@dataclass(frozen=True)
class SourceRecord:
    """Where the source of a build came from."""

    #: The source distribution, or the git repository (credentials masked); None for files next to the recipe, whose
    #: path means nothing on another machine.
    origin: SdistSource | GitSource | None
    #: sha256 over the patched source tree (`source_digest`).
    digest: str
    #: In the order in which they were applied.
    patches: tuple[PatchRecord, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, digest: str) -> SourceRecord:
        """The source of a recipe; raises OSError for a patch that cannot be read."""
        source = recipe.source
        origin: SdistSource | GitSource | None = None
        if isinstance(source, SdistSource):
            origin = replace(source, sha256=source.sha256.lower())
        elif isinstance(source, GitSource):
            origin = replace(source, url=mask_credentials(source.url))
        return cls(origin, digest, tuple(PatchRecord(patch.name, sha256_of(patch)) for patch in recipe.patches))

    @property
    def kind(self) -> str:
        """`path`, `sdist` or `git`, as in records."""
        return next((kind for kind, origin in _ORIGINS.items() if isinstance(self.origin, origin)), "path")

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        origin = asdict(self.origin) if self.origin else {}
        return {"kind": self.kind, **origin, "digest": self.digest, "patches": [asdict(one) for one in self.patches]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SourceRecord:
        """Read what `to_json` wrote; raises KeyError, ValueError or TypeError on anything else."""
        origin: SdistSource | GitSource | None = None
        if data["kind"] != "path":
            made = _ORIGINS[data["kind"]]
            origin = made(**{each.name: text(data[each.name]) for each in fields(made)})
        patches = tuple(PatchRecord(text(each["name"]), text(each["sha256"])) for each in data["patches"])
        return cls(origin, text(data["digest"]), patches)


#: The keys of a recipe, besides its source, that the wheel's record keeps, and `build_digest` with it. All but `cuda`
#: can change the compile. `cuda` says whether a wheel without GPU code is accepted, which `verify` and the index find
#: out from the wheel alone. A key after the first four is in a record only if it is used: what other builds wrote
#: before the key existed stays.
_ALWAYS = ("env", "assume_cuda", "build_requires", "requires")
_IF_USED = ("override_architectures", "requires_torch", "config_settings", "wheel_exclude", "cuda")
_UNUSED = Recipe("", "", folder=Path(), source=PathSource(Path()))


def recorded_settings(recipe: Recipe) -> dict[str, Any]:
    """What a record keeps of a recipe, by the recipe's own keys, as JSON has it; without credentials in URLs."""
    used = [name for name in _IF_USED if getattr(recipe, name) != getattr(_UNUSED, name)]
    return {name: _plain(getattr(recipe, name)) for name in (*_ALWAYS, *used)}


def _read_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """What `recorded_settings` made. Raises KeyError for a missing key, ValueError for a value of another type."""
    found = {name: data[name] for name in (*_ALWAYS, *(name for name in _IF_USED if name in data))}
    for name, value in found.items():
        if type(value) is not type(_plain(getattr(_UNUSED, name))):
            raise ValueError(f"the value of {name!r} has another type: {value!r}")
    return found


def _plain(value: Any) -> Any:  # noqa: ANN401
    """The value of a key as JSON has it, without credentials in URLs."""
    match value:
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case tuple():
            return [_plain(one) for one in value]
        case str():
            return mask_credentials(value)
        case _:
            return value


@dataclass(frozen=True)
class Record:
    """How one wheel was made."""

    #: Which build; `serves` holds only the cell it was compiled for, because later plans may add cells.
    build: Build
    #: What compiled it.
    toolchain: Toolchain
    #: What it was compiled from.
    source: SourceRecord
    #: What the recipe set (`recorded_settings`).
    settings: Mapping[str, Any]
    #: Whether a CUDA toolkit of another minor version was allowed (`--allow-cuda-minor-mismatch`).
    minor_mismatch: bool = False

    @classmethod
    def of(
        cls, build: Build, recipe: Recipe, toolchain: Toolchain, source_digest: str, *, minor_mismatch: bool = False
    ) -> Record:
        """The record of a build that is being made; raises OSError for a patch that cannot be read."""
        return cls(build, toolchain, SourceRecord.of(recipe, source_digest), recorded_settings(recipe), minor_mismatch)

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        build, toolchain = self.build, self.toolchain
        return {
            "schema": _SCHEMA,
            "build": str(build),
            "extension": build.extension,
            **({"project": build.project} if build.project else {}),
            "version": build.version,
            "abi": str(build.abi),
            "torch": str(build.torch),
            "cuda": str(build.cuda),
            "platform": str(build.platform),
            "archs": [str(arch) for arch in build.archs],
            "executor": toolchain.executor,
            "python": str(toolchain.python),
            "toolchain": {str(part): mask_credentials(text) for part, text in toolchain.parts().items()},
            "stand_in": self.minor_mismatch,
            "source": self.source.to_json(),
            "recipe": dict(self.settings),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read what `to_json` wrote; raises KeyError, ValueError, TypeError or BuildfarmError on anything else."""
        if data["schema"] != _SCHEMA:
            raise ValueError(f"the record has schema {data['schema']}; this buildfarm reads {_SCHEMA}")
        torch, cuda = Torch.parse(data["torch"]), Cuda.parse(data["cuda"])
        python, platform = Python.parse(data["python"]), Platform(data["platform"])
        build = Build(
            extension=text(data["extension"]),
            version=text(data["version"]),
            abi=AbiClass(data["abi"]),
            torch=torch,
            cuda=cuda,
            pythons=(python,),
            archs=tuple(map(Arch.parse, data["archs"])),
            platform=platform,
            serves=(Cell(torch, cuda, python, platform),),
            project=text(data.get("project", "")),
        )
        parts = {Part(key): str(value) for key, value in dict(data["toolchain"]).items()}
        packages = tuple(parts.pop(Part.PACKAGES, "").split())
        return cls(
            build,
            Toolchain(executor=text(data["executor"]), python=python, packages=packages, others=parts),
            SourceRecord.from_json(data["source"]),
            _read_settings(data["recipe"]),
            bool(data["stand_in"]),
        )


def read_record(wheel: Path) -> Record:
    """The record inside a wheel; raises UsageError when the wheel has none, or one that this buildfarm cannot read."""
    with WheelFile(wheel) as archive:
        if not any(name.endswith(f".dist-info/{FILE}") for name in archive.names):
            sentence = f"buildfarm did not build this wheel: it has no record of its build ({FILE})"
            hint = "`buildfarm verify WHEEL` judges any wheel, and `buildfarm smoke WHEEL` tests it"
            raise UsageError(sentence, Code.RECORD_NOT_USABLE, where=str(wheel), hints=[hint])
        try:
            return parse_json(archive.read_dist_info(FILE), Record.from_json)
        except (JsonError, BuildfarmError) as error:
            sentence = f"the wheel has no {FILE} that this version of buildfarm can read"
            hint = "run the version of buildfarm that built the wheel"
            raise UsageError(sentence, Code.RECORD_NOT_USABLE, where=str(wheel), hints=[hint]) from error


@dataclass(frozen=True)
class BuildRecord:
    """What the store keeps of a finished build: the record inside the wheel, and how it went on this machine."""

    #: As in the wheel itself.
    record: Record
    #: File names of the shared libraries that torch, its CUDA packages and the driver bring.
    provided: frozenset[str]
    #: Number of parallel compilers.
    jobs: int
    #: None without a compiler cache.
    objects: CacheStatistics | None
    cuda: CudaSources
    #: BUILD_FORMAT of the buildfarm that built the wheel.
    format: int
    #: UTC.
    started: datetime
    #: Wall time.
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        return self.record.to_json() | {
            "provided": sorted(self.provided),
            "jobs": self.jobs,
            "objects": self.objects.to_json() if self.objects else None,
            "cuda_sources": asdict(self.cuda) | {"never_compiled": list(self.cuda.never_compiled)},
            "build_format": self.format,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BuildRecord:
        """Read what `to_json` wrote; raises KeyError, ValueError, TypeError or BuildfarmError on anything else."""
        cuda = data["cuda_sources"]
        return cls(
            record=Record.from_json(data),
            provided=frozenset(texts(data["provided"])),
            jobs=int(data["jobs"]),
            objects=CacheStatistics(**data["objects"]) if data["objects"] else None,
            cuda=CudaSources(int(cuda["files"]), texts(cuda["never_compiled"]), text(cuda["asks_for_gpu"])),
            format=int(data["build_format"]),
            started=datetime.fromisoformat(data["started"]),
            seconds=float(data["seconds"]),
        )


@dataclass(frozen=True)
class CacheStatistics:
    """What the compiler cache did for one build.

    sccache counts steps: the compile of a C++ file is one step; that of a CUDA file has one step for each program that
    nvcc calls.
    """

    reused: int = 0
    compiled: int = 0
    #: Why sccache did not try to cache a call of a compiler, and the number of these calls.
    not_cached: Mapping[str, int] = field(default_factory=dict)
    #: Why the cache was not used at all, or empty.
    refused: str = ""
    #: Why it is unknown what the cache did, or empty.
    unreadable: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the store's record and report.json."""
        return {name: value for name, value in asdict(self).items() if value or name in ("reused", "compiled")}

    def sentence(self) -> str:
        """One line for a person: how much was reused."""
        if self.refused:
            return f"compiler cache not used: {self.refused}"
        if self.unreadable:
            return f"compiler cache: cannot tell how many steps were reused: {self.unreadable}"
        parts = [f"{self.reused} of {self.reused + self.compiled} steps reused"]
        parts += [f"{count} not cached ({reason})" for reason, count in sorted(self.not_cached.items())]
        return f"compiler cache: {'; '.join(parts)}"
