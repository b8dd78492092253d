"""Which wheels `smoke` takes, whose cases it runs on them, and in which cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.errors import NothingSelectedError, UsageError
from builder.log import warn
from builder.matrix.axes import AbiClass, Cell
from builder.matrix.compat import Compat
from builder.matrix.config import AbiRule, Matrix, PathSource, Recipe, Select, WheelSource, nearest
from builder.matrix.plan import served_cells
from builder.wheels.facts import WheelFacts, read_facts
from builder.wheels.official import download_wheel, fetch_wheel, fits


@dataclass(frozen=True)
class Subject:
    """One wheel, the recipe whose cases it is held against, and the cells it is for."""

    wheel: Path
    sha256: str
    recipe: Recipe
    cells: tuple[Cell, ...]


def find_subjects(
    targets: Sequence[str],
    matrix: Matrix,
    recipes: Sequence[Recipe],
    select: Select,
    dist: Path,
    cache: Path,
    index: str,
) -> list[Subject]:
    """Every wheel asked for; without targets those of `dist` and the official ones that recipes name.

    Raises UsageError for a target that is none, NothingSelectedError when no wheel has a cell in the selection.
    """
    found: list[Subject] = []
    if targets:
        for target in targets:
            found += _named(target, matrix, recipes, select, cache, index)
    else:
        chosen(recipes, select)
        names = {canonicalize_name(name) for name in select.extensions}
        for wheel in sorted(dist.glob("*.whl")):
            if not names or canonicalize_name(wheel.name.split("-")[0]) in names:
                found.append(_subject(wheel, matrix, recipes, select))
        for recipe, cells in served_cells(matrix, recipes, select, Compat.load()):
            if isinstance(recipe.source, WheelSource):
                found += _fetched(recipe.source.project, recipe.source.version, recipe, cells, cache, index)
    for subject in found:
        if not subject.cells:
            warn(f"{subject.wheel.name} is for none of the selected cells")
    found = [subject for subject in found if subject.cells]
    if not found:
        raise NothingSelectedError(
            "no wheel for any of these cells",
            where=str(matrix.path),
            hints=["name a wheel, or build one: `buildfarm build` with the same selection"],
        )
    return found


def chosen(recipes: Sequence[Recipe], select: Select) -> list[Recipe]:
    """The recipes a selection names, all without one; raises UsageError for a name nobody has."""
    by_name = {recipe.name: recipe for recipe in recipes}
    for name in select.extensions:
        if name not in by_name:
            raise UsageError(f"no extension is named {name!r}{nearest(name, list(by_name))}", where="--ext")
    return [recipe for recipe in recipes if not select.extensions or recipe.name in select.extensions]


def _named(
    target: str, matrix: Matrix, recipes: Sequence[Recipe], select: Select, cache: Path, index: str
) -> list[Subject]:
    """What one word of the command line means: a file, an address, or a project and its version."""
    if re.match(r"https?://", target):
        return [_subject(download_wheel(target, cache=cache), matrix, recipes, select)]
    if target.endswith(".whl") or "/" in target:
        path = Path(target)
        if not path.is_file():
            raise UsageError("there is no such wheel", where=target)
        return [_subject(path, matrix, recipes, select)]
    try:
        wanted = Requirement(target)
    except InvalidRequirement:
        raise UsageError("is no wheel: give a file, a URL or NAME==VERSION", where=target) from None
    exact = re.fullmatch(r"==([^*]+)", str(wanted.specifier))
    if exact is None:
        raise UsageError("name one version, as NAME==VERSION: a proof holds for one file", where=target)
    recipe = _recipe_of(wanted.name, recipes)
    cells = _cells(recipe, matrix, select)
    return _fetched(wanted.name, exact[1], recipe, cells, cache, index)


def _fetched(
    project: str, version: str, recipe: Recipe, cells: Sequence[Cell], cache: Path, index: str
) -> list[Subject]:
    """The wheel of a project for each Python; one file may serve several."""
    before = [index] if index else []
    found: dict[Path, list[Cell]] = {}
    for python, group in groupby(sorted(cells, key=lambda cell: cell.python), key=lambda cell: cell.python):
        wheel = fetch_wheel(project, version, python, cache=cache, index=before)
        found.setdefault(wheel, []).extend(group)
    return [
        Subject(
            wheel,
            facts.sha256,
            _completed(recipe, facts),
            tuple(sorted(cell for cell in mine if _takes(facts, cell))),
        )
        for wheel, mine in found.items()
        for facts in [read_facts(wheel)]
    ]


def _subject(wheel: Path, matrix: Matrix, recipes: Sequence[Recipe], select: Select) -> Subject:
    facts = read_facts(wheel)
    recipe = _recipe_of(facts.name, recipes)
    mine = [cell for cell in _cells(recipe, matrix, select) if fits(wheel.name, cell.python, any_libc=True)]
    cells = [cell for cell in mine if _takes(facts, cell)]
    return Subject(wheel, facts.sha256, _completed(recipe, facts), tuple(cells))


def _recipe_of(name: str, recipes: Sequence[Recipe]) -> Recipe:
    """The recipe of that name, or one that knows nothing but the name: no cases, its imports read from the wheel."""
    for recipe in recipes:
        if canonicalize_name(recipe.name) == canonicalize_name(name):
            return recipe
    nowhere = Path("/nonexistent")
    return Recipe(
        name=name,
        version="0",
        summary="",
        folder=nowhere,
        source=PathSource(nowhere),
        patches=(),
        abi=(AbiRule(AbiClass.CPYTHON, ""),),
        cuda="optional",
        env={},
        build_requires=(),
        requires=(),
        assume_cuda=False,
        archs=(),
        python="",
        imports=(),
        companions=(),
        libraries={},
        memory_per_job=0,
    )


def _completed(recipe: Recipe, facts: WheelFacts) -> Recipe:
    """With imports: those of a wheel nobody wrote a recipe for are its top-level packages."""
    if recipe.imports:
        return recipe
    tops = {name.split("/")[0] for name in facts.files if name.endswith("/__init__.py") and name.count("/") == 1}
    if not tops:
        raise UsageError("holds no Python package to import", where=facts.filename, hints=["write a recipe for it"])
    return replace(recipe, imports=tuple(sorted(tops)))


def _cells(recipe: Recipe, matrix: Matrix, select: Select) -> list[Cell]:
    """The selected cells this extension is for."""
    ours = Select(select.torch, select.cuda, select.python)
    return [cell for _, cells in served_cells(matrix, [recipe], ours, Compat.load()) for cell in cells]


def _takes(facts: WheelFacts, cell: Cell) -> bool:
    """Whether the wheel is for the torch and the CUDA of a cell, by what its METADATA and its libraries ask for."""
    for text in facts.requires_dist:
        wanted = Requirement(text)
        if canonicalize_name(wanted.name) == "torch" and not wanted.specifier.contains(str(cell.torch)):
            return False
    runtimes = {
        m[1] for library in facts.libraries for n in library.needed if (m := re.match(r"libcudart\.so\.(\d+)", n))
    }
    return not runtimes or str(cell.cuda.major) in runtimes
