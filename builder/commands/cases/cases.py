"""`buildfarm cases`: draft the cases of extensions that have been built, in a cell of each wheel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.commands.cases.draft_file import cases_text, missing_text
from builder.commands.folders import open_store
from builder.commands.smoke.cells import cell_environments
from builder.commands.smoke.smoke_targets import SmokeTarget, TargetFinder
from builder.commands.smoke.wheel_recipe import selected_recipes
from builder.errors import BuildfarmError, MissingToolError, NothingSelectedError, UsageError
from builder.gate.draft.result import Drafts
from builder.log import print_line
from builder.matrix.axes import Cell
from builder.matrix.config import CASES, Recipe, Selection, WheelSource
from builder.matrix.load import load_matrix, load_recipes
from builder.proofs.cells.cell_environment import CellEnvironments
from builder.result import CasesResult
from builder.store import Store, work_name, write_atomic
from builder.wheelfile.compatibility import is_compatible


@dataclass(frozen=True)
class CasesOptions:
    """The options of one `buildfarm cases`.

    Attributes:
        matrix: the file matrix.yaml.
        select: which cells and extensions.
        out: the file to write instead of the recipe's cases.py, or None.
        dist: a folder with wheels, beside those in the store.
        store: its folder, or None for the user's default store.
        executor: `local` for a uv environment of the cell, `docker` for a container of its runtime image, `auto` for a
            container if the wheel needs a newer glibc than this machine has.
        python_downloads: whether uv may download a Python that this machine lacks.
        pull: whether images may be pulled.

    """

    matrix: Path
    select: Selection = field(default_factory=Selection)
    out: Path | None = None
    dist: Path = Path("dist")
    store: Path | None = None
    executor: str = "auto"
    python_downloads: bool = True
    pull: bool = True


def run_cases(options: CasesOptions) -> Iterator[CasesResult]:
    """Draft the cases of each selected extension; write cases.py where there is none.

    Raises UsageError for a wrong selection or an existing `out`, NothingSelectedError when an extension has no wheel,
    MissingToolError when no cell of a wheel is available, BuildfarmError when the wheel cannot be imported.
    """
    matrix = load_matrix(options.matrix)
    recipes = selected_recipes(load_recipes(matrix), options.select)
    if options.out and len(recipes) != 1:
        raise UsageError(
            "name exactly one extension with --ext NAME: the file holds the cases of one extension", where="--out"
        )
    if options.out and options.out.exists():
        raise UsageError("the file exists; `buildfarm cases` does not overwrite files", where=str(options.out))
    store = open_store(options.store)
    store.clear_abandoned()
    cells = cache(
        partial(
            cell_environments, matrix=matrix, store=store, python_downloads=options.python_downloads, pull=options.pull
        )
    )
    finder = TargetFinder(matrix, recipes, options.select, cache=store.root / "sources")
    for recipe in recipes:
        target = _target(recipe, finder, store, options.dist)
        cell, drafts = _drafted(target, cells, options.executor, store)
        if drafts.error:
            raise BuildfarmError(f"no cases can be drafted: {drafts.error}", where=recipe.name)
        yield _written(recipe, target, cell, drafts, options.out)


def _target(recipe: Recipe, finder: TargetFinder, store: Store, dist: Path) -> SmokeTarget:
    """The newest wheel of the extension that fits the selection, from the store or `dist`."""
    names: list[str] = []
    if isinstance(recipe.source, WheelSource):
        names = [f"{recipe.source.project}=={recipe.source.version}"]
    else:
        found = [*store.root.glob("builds/*/*.whl"), *dist.glob("*.whl")]
        own = [wheel for wheel in found if _is_wheel_of(wheel, recipe)]
        names = [str(wheel) for wheel in sorted(own, key=lambda wheel: wheel.stat().st_mtime, reverse=True)]
    if not names:
        raise NothingSelectedError(
            "the extension has no wheel yet, and a draft needs a wheel",
            where=recipe.name,
            hints=[f"run `buildfarm build --ext {recipe.name}` first; a wheel with failed checks is enough"],
        )
    return finder.find(names, dist)[0]


def _is_wheel_of(wheel: Path, recipe: Recipe) -> bool:
    try:
        name, version, *_ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        return False
    return recipe.makes(name) and recipe.is_version(version)


def _drafted(
    target: SmokeTarget, cells: Callable[[str], CellEnvironments], wanted: str, store: Store
) -> tuple[Cell, Drafts]:
    """Draft in the newest cell that this machine provides; `cells` creates the cells of an executor."""
    problem = MissingToolError("no cell of this wheel is available", where=target.wheel.name)
    for cell in sorted(target.cells, reverse=True):
        executor = wanted
        if wanted == "auto":
            executor = "local" if is_compatible(target.wheel.name, cell.python) else "docker"
        where = ", in a container" if executor == "docker" else ""
        print_line(f"{target.wheel.name} in {cell}{where}: trying inputs for each op")
        name = f"cases-{work_name(target.sha256)}-{cell}"
        log = store.log(f"cases-{target.wheel.name}-{cell}")
        try:
            with (
                store.work(name) as folder,
                cells(executor).open(cell, folder, owner=store.owner(name), log=log) as environment,
            ):
                environment.install(target.wheel)
                drafts = environment.draft_cases(target.recipe)
        except MissingToolError as error:
            problem = error
            continue
        if isinstance(drafts, str):
            raise BuildfarmError(drafts, where=target.wheel.name)
        return cell, drafts
    raise problem


def _written(recipe: Recipe, target: SmokeTarget, cell: Cell, drafts: Drafts, out: Path | None) -> CasesResult:
    """Write the drafts to a new file; where the recipe has cases, return the text of what they lack instead."""
    name, wheel, cases = recipe.name, target.wheel.name, recipe.folder / CASES
    if recipe.cases and not out:
        return CasesResult(name, wheel, cell, drafts, None, missing_text(drafts) if drafts.drafts else "", cases)
    file = out or cases
    text = missing_text(drafts) if recipe.cases else cases_text(name, str(cell), drafts)
    try:
        write_atomic(file.absolute(), text.encode())
    except OSError as error:
        raise UsageError(f"cannot write this file: {error.strerror}", where=str(file)) from None
    return CasesResult(name, wheel, cell, drafts, file, "", cases)
