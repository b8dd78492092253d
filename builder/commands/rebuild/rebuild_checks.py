"""Whether the recipe and the toolchain on this machine are the ones that built a wheel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from builder.errors import Code, MissingToolError, UsageError
from builder.log import print_warning
from builder.matrix.config import MATRIX, GitSource, Matrix, Recipe, SdistSource
from builder.matrix.load import load_recipes, recipe_of
from builder.matrix.yaml_document import Document
from builder.records.record import RecipeSettings, Record
from builder.records.toolchain import Part, Toolchain
from builder.wheels.sources.prepare import source_digest
from builder.wheels.toolchain.uv import uv_command

#: Parts that are buildfarm's own code. A difference does not stop a rebuild: other code may make the same wheel.
_OWN_PARTS = frozenset({Part.SCRIPTS})

#: How to restore a part of the toolchain that differs. The other parts are Python packages: install that version.
_RESTORE = {
    Part.BASE: "set the base image with `images:` in matrix.yaml or with `--image`",
    Part.BASE_DIGEST: "restore the original buildfarm.lock, which has the recorded digest of the base image",
    Part.BASE_ID: "use the same base image: pull it by the digest in the original buildfarm.lock, or load a saved copy",
    Part.CXX: "set CC and CXX to the compiler that built the wheel",
    Part.CC: "set CC and CXX to the compiler that built the wheel",
    Part.IMAGE: "the rendered Dockerfile or a base image has changed; use the buildfarm version that built the wheel",
    Part.NVCC: "set CUDA_HOME to the toolkit that built the wheel",
    Part.PACKAGES: "use a package index that has the recorded versions",
    Part.SCCACHE: "put the recorded version of sccache on PATH, and do not set BUILDFARM_COMPILER_CACHE=0",
    Part.REQUESTED_CUDA: "set CUDA_HOME to the toolkit that built the wheel",
    Part.ZLIB: "run buildfarm under a Python with the recorded version of zlib",
}


def find_recipe(record: Record, matrix: Matrix) -> Recipe:
    """The recipe of the wheel's extension; raises UsageError when the matrix has none."""
    name = record.build.extension
    recipe = next((recipe for recipe in load_recipes(matrix) if recipe.name == name), None)
    if recipe is None:
        raise UsageError(
            f"the wheel was built from the extension {name!r}, which this matrix does not list",
            Code.EXTENSION_UNKNOWN,
            where=str(matrix.path),
            hints=["name the matrix.yaml that lists the extension with `--matrix FILE`"],
        )
    return recipe


def recorded_recipe(record: Record, wheel: Path) -> Recipe:
    """The recipe that the record of a wheel gives; warns that the wheel decides which source is built.

    Raises UsageError if a part of the source was beside the recipe, or if the record says what no recipe may say.
    """
    missing = [patch.name for patch in record.source.patches]
    if record.source.origin is None:
        missing = ["the source, which was in the folder of the recipe"]
    if record.source.origin is None or missing:
        raise UsageError(
            f"the wheel does not contain all that it was built from; missing: {', '.join(missing)}",
            Code.RECORD_INCOMPLETE,
            where=str(wheel),
            hints=["run the command in the folder of the recipe's matrix.yaml, or pass `--matrix FILE`"],
        )
    match record.source.origin:
        case SdistSource(project=project, version=version, sha256=sha256):
            source = f"{project} {version} of the package index"
            keys = {"sdist": project, "version": version, "sha256": sha256}
        case GitSource(url=url, revision=revision, subdirectory=subdirectory):
            source = f"{url} at {revision}"
            keys = {"git": url, "revision": revision, **({"subdirectory": subdirectory} if subdirectory else {})}
    build = record.build
    data = {"name": build.extension, "version": build.version, "abi": str(build.abi), "imports": ["torch"]}
    # Whoever made the wheel wrote the record, so it is checked as a recipe is. A rebuild imports nothing.
    recipe = recipe_of(Document(wheel, {**data, "source": keys, **record.settings.to_json()}, {}), wheel.parent)
    print_warning(f"there is no {MATRIX}, so the wheel decides what is built: the build scripts of {source} run here")
    return recipe


def check_source(record: Record, recipe: Recipe, cache: Path) -> None:
    """Raises MissingToolError when the source here, or a setting of the recipe, differs from the record."""
    old = record.settings.to_json()
    new = RecipeSettings.of(recipe).to_json()
    changed = [key for key in old | new if old.get(key) != new.get(key)]
    differing = [f"`{key}`" for key in changed]
    hints = [
        f"the wheel's record has {key}: {json.dumps(old[key])}" if key in old else f"the wheel's record has no {key}"
        for key in changed
    ]
    if recipe.wheel_version(record.build.torch, record.build.cuda) != record.build.version:
        differing.insert(0, "`version`")
    source = record.source
    if source_digest(recipe, cache=cache) != source.digest:
        differing.insert(0, "source")
        match source.origin:
            case SdistSource(project=project, version=version, sha256=sha256):
                text = f"{project} {version}, sha256 {sha256}"
            case GitSource(url=url, revision=revision):
                text = f"{url} at {revision}"
            case None:
                text = f"a folder with the digest {source.digest}"
        hints.append(f"the source was {text}")
        hints += [f"the source had the patch {patch.name}, sha256 {patch.sha256}" for patch in source.patches]
    if differing:
        raise MissingToolError(
            f"the source or the recipe differs from the wheel's record: {', '.join(differing)}",
            Code.RECORD_DIFFERS,
            where=str(recipe.folder),
            hints=[
                "restore the recorded recipe and source, or pass the matrix.yaml that lists them with `--matrix`",
                *hints,
            ],
        )


def check_toolchain(recorded: Toolchain, here: Toolchain) -> None:
    """Raises MissingToolError that names every part that differs and is not buildfarm's own code."""
    old, new = recorded.parts(), here.parts()
    if recorded.python != here.python:
        old[Part.PYTHON_VERSION], new[Part.PYTHON_VERSION] = str(recorded.python), str(here.python)
    # An image that was pinned only then, or only now, is the same if its id is.
    ignored = _OWN_PARTS if Part.BASE_DIGEST in old.keys() & new.keys() else _OWN_PARTS | {Part.BASE_DIGEST}
    differing = [part for part in Part if old.get(part) != new.get(part) and part not in ignored]
    if differing:
        details = "; ".join(_difference(old, new, part) for part in sorted(differing))
        hints = dict.fromkeys(_how_to_restore(part, old.get(part)) for part in sorted(differing))
        raise MissingToolError(
            f"the toolchain differs from the one that built the wheel: {details}",
            Code.RECORD_DIFFERS,
            hints=list(hints),
        )


def with_recorded_parts(here: Toolchain, recorded: Toolchain) -> Toolchain:
    """The checked toolchain with the recorded values of the parts that `check_toolchain` ignores.

    The new wheel carries a record too. With this machine's values in it, an unchanged wheel would never be equal.
    """
    return replace(here, scripts=recorded.scripts, base_digest=recorded.base_digest)


def _how_to_restore(part: Part, version: str | None) -> str:
    if part in _RESTORE:
        return _RESTORE[part]
    if version and part is Part.PYTHON_VERSION:
        return f"install the recorded patch release of Python with `{uv_command()} python install {version}`"
    if version is None:
        return f"the wheel was built without {part}"
    return f"`pip install '{part}=={version}'` into buildfarm's environment"


def _difference(old: Mapping[Part, str], new: Mapping[Part, str], part: Part) -> str:
    """`c++: g++ 12.2.0 when the wheel was built, g++ 13.2.0 here`; of packages only those that differ."""
    if part is Part.PACKAGES:
        then, here = set(old.get(part, "").split()), set(new.get(part, "").split())
        sides = [("here", here - then), ("in the record", then - here)]
        return "; ".join(f"packages only {where}: {' '.join(sorted(names))}" for where, names in sides if names)
    return f"{part}: {old.get(part, 'none')} when the wheel was built, {new.get(part, 'none')} here"
