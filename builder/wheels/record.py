"""What a wheel says of how it was made, `.dist-info/buildfarm.json`: enough to make it again, and no place or time."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import FarmError, UsageError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import GitSource, PathSource, Recipe, SdistSource, WheelSource
from builder.matrix.plan import Build
from builder.process import masked
from builder.wheels.build import Toolchain

#: Its name inside `.dist-info`.
FILE = "buildfarm.json"

_SCHEMA = 2

#: What of a recipe reaches a build besides its source; `build_digest` holds the same.
_SETTINGS = ("env", "assume_cuda", "cibuildwheel_skip", "build_requires", "requires")


@dataclass(frozen=True)
class Record:
    """How one wheel was made.

    Attributes:
        build: which build it is; `serves` holds only the cell it was compiled for, since what it serves may grow.
        toolchain: what compiled it.
        source: where its source is from (`kind` and what goes with it), its `digest`, and `patches` with their sha256.
        settings: what the recipe told the build, by the recipe's own keys.
        stand_in: whether a toolkit of another minor was allowed (`--stand-in`).

    """

    build: Build
    toolchain: Toolchain
    source: Mapping[str, Any]
    settings: Mapping[str, Any]
    stand_in: bool = False

    @classmethod
    def of(
        cls, build: Build, recipe: Recipe, toolchain: Toolchain, source_digest: str, *, stand_in: bool = False
    ) -> Record:
        """The record of a build that is being made; raises OSError for a patch that cannot be read."""
        settings = {name: _plain(getattr(recipe, name)) for name in _SETTINGS}
        return cls(build, toolchain, _source(recipe, source_digest), settings, stand_in)

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it back."""
        build, toolchain = self.build, self.toolchain
        return {
            "schema": _SCHEMA,
            "build": str(build),
            "extension": build.extension,
            "version": build.version,
            "abi": str(build.abi),
            "torch": str(build.torch),
            "cuda": str(build.cuda),
            "platform": str(build.platform),
            "archs": [str(arch) for arch in build.archs],
            "executor": toolchain.executor,
            "python": str(toolchain.python),
            "toolchain": dict(toolchain.parts),
            "stand_in": self.stand_in,
            "source": dict(self.source),
            "recipe": dict(self.settings),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read what `to_json` wrote; raises KeyError, ValueError, TypeError or FarmError on anything else."""
        if data["schema"] != _SCHEMA:
            raise ValueError(f"a record of schema {data['schema']}, and this buildfarm reads {_SCHEMA}")
        torch, cuda = Torch.parse(data["torch"]), Cuda.parse(data["cuda"])
        python, platform = Python.parse(data["python"]), Platform(data["platform"])
        build = Build(
            extension=data["extension"],
            version=data["version"],
            abi=AbiClass(data["abi"]),
            torch=torch,
            cuda=cuda,
            pythons=(python,),
            archs=tuple(map(Arch.parse, data["archs"])),
            platform=platform,
            serves=(Cell(torch, cuda, python, platform),),
        )
        toolchain = Toolchain(data["executor"], python, tuple(sorted(dict(data["toolchain"]).items())))
        return cls(build, toolchain, data["source"], data["recipe"], bool(data["stand_in"]))


def read_record(wheel: Path) -> Record:
    """The record inside a wheel; raises UsageError when there is none that can be read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (path,) = [name for name in archive.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{FILE}", name)]
            return Record.from_json(json.loads(archive.read(path)))
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"this wheel cannot be read: {error}", where=str(wheel)) from error
    except (ValueError, KeyError, TypeError, FarmError) as error:
        raise UsageError(
            f"the wheel does not say how it was made: it holds no {FILE} that this buildfarm can read",
            where=str(wheel),
            hints=["only a wheel that buildfarm built can be made again; other versions of it wrote another record"],
        ) from error


def _source(recipe: Recipe, digest: str) -> dict[str, Any]:
    origin: dict[str, Any]
    match recipe.source:
        case PathSource():  # beside the recipe; where that lies is this machine's affair
            origin = {"kind": "path"}
        case SdistSource(project=project, version=version, sha256=sha256):
            origin = {"kind": "sdist", "project": project, "version": version, "sha256": sha256.lower()}
        case GitSource(url=url, revision=revision, subdirectory=subdirectory):
            origin = {"kind": "git", "url": masked(url), "revision": revision, "subdirectory": subdirectory}
        case WheelSource():
            raise AssertionError("the plan builds nothing from an official wheel")
    patches = [
        {"name": patch.name, "sha256": hashlib.sha256(patch.read_bytes()).hexdigest()} for patch in recipe.patches
    ]
    return {**origin, "digest": digest, "patches": patches}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
