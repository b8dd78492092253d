"""Load matrix.yaml and extension.yaml into `Matrix` and `Recipe`, and plan them. No other module reads these files."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder.errors import Code, UsageError
from builder.gate.outcome import Accept
from builder.matrix import config
from builder.matrix.axes import Arch
from builder.matrix.compat import Compat, did_you_mean, use_facts_of
from builder.matrix.config import RECIPE, Matrix, Recipe, Selection
from builder.matrix.fields import StrictModel
from builder.matrix.models import MatrixModel, RecipeModel, SourceModel
from builder.matrix.plan import Plan, make_plan
from builder.matrix.yaml_document import Document, Key, key_path, read_document, validate

#: Keys that `recipe_of` converts. The others are in a Recipe as extension.yaml has them.
_CONVERTED = {"name", "version", "source", "patches", "abi", "archs", "imports", "accepts", "max_size"}
_AS_WRITTEN = {each.name for each in fields(Recipe)} & set(RecipeModel.model_fields) - _CONVERTED


def read_plan(path: Path, select: Selection, archs: tuple[Arch, ...] = ()) -> tuple[Matrix, dict[str, Recipe], Plan]:
    """Read matrix.yaml and its recipes, and plan the selection; return the matrix, the recipes by name, and the plan.

    `archs`, unless empty, replace the GPU architectures of the matrix and of the recipes.

    Raises UsageError: a file or the selection is wrong; NothingSelectedError: no cell is left of the selection.
    """
    matrix = load_matrix(path)
    recipes = load_recipes(matrix)
    Compat.load().check_archs(archs or matrix.archs, "--arch" if archs else f"{matrix.path}, `archs`")
    if archs:
        matrix = replace(matrix, archs=archs)
        recipes = tuple(replace(recipe, archs=()) for recipe in recipes)
    plan = make_plan(matrix, recipes, select, Compat.load())
    return matrix, {recipe.name: recipe for recipe in recipes}, plan


def load_matrix(path: Path) -> Matrix:
    """Read matrix.yaml. `load_recipes` reads the recipes it lists.

    Raises UsageError: the first error in the file, with its position; the hints are the other errors.
    """
    if not path.exists():
        raise UsageError(
            "there is no such file; the command needs it, because it lists the extensions, torch, CUDA and Python",
            Code.NO_SUCH_FILE,
            where=str(path),
            hints=[
                "`buildfarm init` starts a project from the only .cu file of the folder, or with an example that works",
                "`buildfarm add SOURCE` starts a project with a source: a folder with setup.py, torch-scatter==2.1.2",
                "if matrix.yaml is in a different place, pass `--matrix FILE`; for `buildfarm ci`, pass `--dir DIR`",
            ],
        )
    use_facts_of(path.parent)
    Compat.load()  # a fault of facts.yaml is no fault of the keys below
    document = read_document(path)
    model = validate(document, MatrixModel)
    return Matrix(
        path=path,
        torch=tuple(sorted(set(model.torch))),
        cuda=tuple(sorted(set(model.cuda))),
        python=tuple(sorted(set(model.python))),
        archs=tuple(sorted(set(model.archs))),
        platforms=tuple(sorted(set(model.platforms))),
        extensions=_extension_folders(document, model.extensions),
        exclude=tuple(config.Exclude(**_given(one)) for one in model.exclude),
        images=tuple(config.ImageRule(**_given(one)) for one in model.images),
        torch_index=model.torch_index,
    )


def load_recipe(folder: Path) -> Recipe:
    """Read the extension.yaml of a folder.

    Raises UsageError: the first error in the file, with its position; the hints are the other errors.
    """
    return recipe_of(read_document(folder / RECIPE), folder.resolve())


def recipe_of(document: Document, home: Path) -> Recipe:
    """Return the recipe that a document declares; its paths are relative to `home`. Raises as `load_recipe`."""
    model = validate(document, RecipeModel)
    patches = tuple(
        _within(document, home, patch.file, ("patches", i), file=True) for i, patch in enumerate(model.patches)
    )
    return Recipe(
        name=re.sub(r"[-_]*\{\w+\}", "", model.name),
        pattern=model.name if "{" in model.name else "",
        version=re.sub(r"\{\w+\}", "0", model.version),
        version_pattern=model.version if "{" in model.version else "",
        folder=home,
        source=_source(document, home, model.source),
        patches=patches,
        patch_rules={
            path.relative_to(home).as_posix(): config.PatchRule(patch.torch, patch.cuda)
            for path, patch in zip(patches, model.patches, strict=True)
            if patch.torch or patch.cuda
        },
        abi=tuple(config.AbiRule(rule.abi, rule.torch, rule.abi3t) for rule in model.abi),
        archs=tuple(sorted(set(model.archs))),
        imports=tuple(model.imports),
        accepts=tuple(Accept(str(one.check), one.reason, one.op, one.cell) for one in model.accepts),
        max_size=model.max_size or 0,
        **{name: getattr(model, name) for name in _AS_WRITTEN},
    )


def _given(model: StrictModel) -> dict[str, Any]:
    """The keys of a rule that have a value; a rule in a Matrix or a Recipe has the same."""
    return {name: value for name in type(model).model_fields if (value := getattr(model, name)) is not None}


def load_recipes(matrix: Matrix) -> tuple[Recipe, ...]:
    """Read the recipe of every extension of a matrix, sorted by name.

    Raises UsageError: a recipe is wrong, two recipes have the same name, or an `exclude` names no extension.
    """
    recipes = sorted((load_recipe(folder) for folder in matrix.extensions), key=lambda r: (r.name, r.folder))
    homes: dict[str, Recipe] = {}
    for recipe in recipes:
        first = homes.setdefault(canonicalize_name(recipe.name), recipe)
        if first is not recipe:
            raise UsageError(
                f"two extensions are named {recipe.name}: {first.folder} and {recipe.folder}",
                Code.ALREADY_EXISTS,
                where=str(matrix.path),
                hints=[f"change `name` in the {RECIPE} of one of them"],
            )
    names = [recipe.name for recipe in recipes]
    for i, exclude in enumerate(matrix.exclude):
        if exclude.extension and exclude.extension not in names:
            raise UsageError(
                f"`exclude[{i}].extension`: no extension is named {exclude.extension!r}"
                + did_you_mean(exclude.extension, names),
                Code.EXTENSION_UNKNOWN,
                where=str(matrix.path),
            )
    return tuple(recipes)


def _extension_folders(document: Document, texts: Sequence[str]) -> tuple[Path, ...]:
    home = document.path.parent.resolve()
    folders: list[Path] = []
    for i, text in enumerate(texts):
        folder, key = (home / text).resolve(), ("extensions", i)
        if not (folder / RECIPE).is_file():
            missing = f"there is no file {RECIPE} in {text}" if folder.is_dir() else f"there is no folder {text}"
            raise _error_at(document, key, missing)
        if folder in folders:
            raise _error_at(document, key, f"the folder {text} is listed twice")
        folders.append(folder)
    return tuple(folders)


def _source(document: Document, home: Path, model: SourceModel) -> config.Source:
    if model.sdist and model.version and model.sha256:
        return config.SdistSource(model.sdist, model.version, model.sha256)
    if model.git and model.revision:
        return config.GitSource(model.git, model.revision, model.subdirectory or "")
    if model.wheel and model.version:
        return config.WheelSource(model.wheel, model.version)
    return config.PathSource(_within(document, home, model.path or ".", ("source", "path"), file=False))


def _within(document: Document, home: Path, text: str, key: Key, *, file: bool) -> Path:
    """Return the absolute path; raise UsageError if it does not exist or, with links resolved, leaves the folder."""
    path = (home / text).resolve()
    if not path.is_relative_to(home):
        raise _error_at(document, key, f"{text!r} is outside of the recipe's folder; copy it into {home.name}")
    if not (path.is_file() if file else path.is_dir()):
        raise _error_at(document, key, f"there is no {'file' if file else 'folder'} {text!r} in {home.name}")
    return path


def _error_at(document: Document, key: Key, sentence: str) -> UsageError:
    return UsageError(f"`{key_path(key)}`: {sentence}", Code.KEY_INVALID, where=document.where(key))
