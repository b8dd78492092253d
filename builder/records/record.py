"""How a wheel was made, as `.dist-info/buildfarm.json` inside it: enough to rebuild it, without paths and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from builder.errors import BuildfarmError, Code, UsageError
from builder.hashing import sha256_of
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import GitSource, PathSource, Recipe, SdistSource, WheelSource
from builder.matrix.plan import Build
from builder.records.toolchain import Toolchain
from builder.untrusted.json_data import JsonError, parse_json, text
from builder.untrusted.masking import mask_credentials
from builder.wheelfile.archive import WheelFile

#: File name inside `.dist-info`.
FILE = "buildfarm.json"

_SCHEMA = 2


@dataclass(frozen=True)
class PatchRecord:
    """One applied patch: its file name and the sha256 of its bytes."""

    name: str
    sha256: str


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
        origin: SdistSource | GitSource | None
        match recipe.source:
            case PathSource():
                origin = None
            case SdistSource(project=project, version=version, sha256=sha256):
                origin = SdistSource(project, version, sha256.lower())
            case GitSource(url=url, revision=revision, subdirectory=subdirectory):
                origin = GitSource(mask_credentials(url), revision, subdirectory)
            case WheelSource():
                raise AssertionError("an official wheel has no source: a plan must not contain a build of this recipe")
        return cls(origin, digest, tuple(PatchRecord(patch.name, sha256_of(patch)) for patch in recipe.patches))

    @property
    def kind(self) -> str:
        """`path`, `sdist` or `git`, as in records."""
        match self.origin:
            case SdistSource():
                return "sdist"
            case GitSource():
                return "git"
            case None:
                return "path"

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        origin: dict[str, str] = {}
        match self.origin:
            case SdistSource(project=project, version=version, sha256=sha256):
                origin = {"project": project, "version": version, "sha256": sha256}
            case GitSource(url=url, revision=revision, subdirectory=subdirectory):
                origin = {"url": url, "revision": revision, "subdirectory": subdirectory}
        patches = [{"name": patch.name, "sha256": patch.sha256} for patch in self.patches]
        return {"kind": self.kind, **origin, "digest": self.digest, "patches": patches}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SourceRecord:
        """Read what `to_json` wrote; raises KeyError, ValueError or TypeError on anything else."""
        origin: SdistSource | GitSource | None = None
        match data["kind"]:
            case "sdist":
                origin = SdistSource(text(data["project"]), text(data["version"]), text(data["sha256"]))
            case "git":
                origin = GitSource(text(data["url"]), text(data["revision"]), text(data["subdirectory"]))
            case "path":
                pass
            case other:
                raise ValueError(f"unknown kind of source: {other!r}")
        patches = tuple(PatchRecord(text(each["name"]), text(each["sha256"])) for each in data["patches"])
        return cls(origin, text(data["digest"]), patches)


@dataclass(frozen=True)
class RecipeSettings:
    """The keys of a recipe, besides its source, that reach a build. A key that is listed here is in `build_digest`."""

    env: Mapping[str, str] = field(default_factory=dict)
    assume_cuda: bool = False
    build_requires: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    override_architectures: bool = False
    requires_torch: str = "window"
    config_settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wheel_exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe) -> RecipeSettings:
        """The settings of a recipe, without credentials in URLs."""
        return cls(**{each.name: _masked(getattr(recipe, each.name)) for each in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """As plain data, by the recipe's own keys; `from_json` reads it.

        A key that is not in _ALWAYS is there only if it is used: what other builds wrote before the key existed stays.
        """
        without = RecipeSettings()
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: _plain(value) for name, value in values.items() if name in _ALWAYS or value != getattr(without, name)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecipeSettings:
        """Read what `to_json` wrote; raises KeyError or ValueError on anything else."""
        from pydantic import TypeAdapter  # noqa: PLC0415 - loads slowly

        return TypeAdapter(RecipeSettings).validate_python({**data, **{name: data[name] for name in _ALWAYS}})


_ALWAYS = ("env", "assume_cuda", "build_requires", "requires")


def _masked(value: Any) -> Any:  # noqa: ANN401
    """The value of a key without credentials in URLs."""
    match value:
        case Mapping():
            return {name: _masked(one) for name, one in value.items()}
        case tuple():
            return tuple(_masked(one) for one in value)
        case str():
            return mask_credentials(value)
        case _:
            return value


def _plain(value: Any) -> Any:  # noqa: ANN401
    """The value of a key as JSON has it."""
    match value:
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case tuple():
            return [_plain(one) for one in value]
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
    #: What the recipe set.
    settings: RecipeSettings
    #: Whether a CUDA toolkit of another minor version was allowed (`--allow-cuda-minor-mismatch`).
    minor_mismatch: bool = False

    @classmethod
    def of(
        cls, build: Build, recipe: Recipe, toolchain: Toolchain, source_digest: str, *, minor_mismatch: bool = False
    ) -> Record:
        """The record of a build that is being made; raises OSError for a patch that cannot be read."""
        return cls(build, toolchain, SourceRecord.of(recipe, source_digest), RecipeSettings.of(recipe), minor_mismatch)

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
            "recipe": self.settings.to_json(),
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
        return cls(
            build,
            Toolchain.from_parts(text(data["executor"]), python, dict(data["toolchain"])),
            SourceRecord.from_json(data["source"]),
            RecipeSettings.from_json(data["recipe"]),
            bool(data["stand_in"]),
        )


def read_record(wheel: Path) -> Record:
    """The record inside a wheel; raises UsageError when the wheel has none, or one that this buildfarm cannot read."""
    with WheelFile(wheel) as archive:
        if not any(name.endswith(f".dist-info/{FILE}") for name in archive.names):
            raise UsageError(
                f"buildfarm did not build this wheel: it has no record of its build ({FILE})",
                Code.RECORD_MISSING,
                where=str(wheel),
                hints=["`buildfarm verify WHEEL` judges any wheel, and `buildfarm smoke WHEEL` tests it"],
            )
        try:
            return parse_json(archive.read_dist_info(FILE), Record.from_json)
        except (JsonError, BuildfarmError) as error:
            raise UsageError(
                f"the wheel has no {FILE} that this version of buildfarm can read",
                Code.RECORD_UNREADABLE,
                where=str(wheel),
                hints=["run the version of buildfarm that built the wheel"],
            ) from error
