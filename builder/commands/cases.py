"""`buildfarm cases`: draft the cases of extensions that have been built, in a cell of each wheel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.cli.options import (
    ExecutorName,
    JsonOption,
    MatrixOption,
    NoPullOption,
    NoPythonDownloadsOption,
    SelectOptions,
    StoreOption,
)
from builder.cli.output import print_data
from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.cases_text import cases_text, missing_text, summary_text
from builder.commands.folders import DIST, failed_builds, open_store
from builder.commands.smoke_targets import SmokeTarget, TargetFinder, selected_recipes
from builder.errors import BuildfarmError, Code, MissingToolError, NothingSelectedError, UsageError
from builder.gate.draft.result import Drafts
from builder.log import print_line, print_warning
from builder.matrix.axes import Cell
from builder.matrix.config import CASES, MATRIX, Recipe, WheelSource
from builder.matrix.load import load_matrix, load_recipes
from builder.proofs.cells.cell_environment import CellEnvironments, cell_environments
from builder.result import CasesResult
from builder.store import Store, work_name, write_atomic
from builder.wheelfile.compatibility import is_compatible
from builder.wheels.build_dir import clear_abandoned


@dataclass(frozen=True, kw_only=True)
class CasesOptions(SelectOptions):
    """The options of `buildfarm cases`."""

    matrix: MatrixOption = MATRIX
    executor: Annotated[
        ExecutorName,
        typer.Option(
            "--executor",
            help="auto: docker, in the cell's runtime image, if the glibc here is too old for the wheel, else local.",
        ),
    ] = ExecutorName.AUTO
    no_pull: NoPullOption = False
    no_python_downloads: NoPythonDownloadsOption = False
    dist: Annotated[
        Path,
        typer.Option(
            "--dist",
            metavar="DIR",
            help="Folder with wheels, for an extension whose wheel was not built here: the newest one is used.",
        ),
    ] = DIST
    store: StoreOption = None
    as_json: JsonOption = False


def cases(options: CasesOptions) -> None:
    """Draft the cases.py of a built extension: find its ops, and try inputs until each op accepts a call.

    Examples:
        buildfarm cases --ext NAME
        buildfarm cases --ext NAME --torch 2.11 --python 3.12
        buildfarm cases --ext NAME --torch 2.2 --cuda 12.1 --executor docker
    """
    results = list(run_cases(options))
    if not options.as_json:
        print_data("\n".join(map(summary_text, results)))
        return
    data = [
        {
            "extension": result.extension,
            "wheel": result.wheel,
            "cell": str(result.cell),
            "file": str(result.file) if result.file else None,
            **result.drafts.to_json(),
        }
        for result in results
    ]
    print_data(json.dumps(data, indent=1) + "\n")


def run_cases(options: CasesOptions) -> Iterator[CasesResult]:
    """Draft the cases of each selected extension; write cases.py where there is none.

    Raises UsageError for a wrong selection, NothingSelectedError when an extension has no wheel, MissingToolError when
    no cell of a wheel is available, BuildfarmError when the wheel cannot be imported.
    """
    matrix = load_matrix(options.matrix)
    recipes = selected_recipes(load_recipes(matrix), options.select)
    store = open_store(options.store)
    clear_abandoned(store)
    downloads, pull = not options.no_python_downloads, not options.no_pull
    cells = cache(partial(cell_environments, matrix=matrix, store=store, python_downloads=downloads, pull=pull))
    finder = TargetFinder(matrix, recipes, options.select, cache=store.root / "sources")
    for recipe in recipes:
        target = _target(recipe, finder, store, options.dist)
        cell, drafts = _drafted(target, cells, options.executor, store)
        if drafts.error:
            raise BuildfarmError(f"no cases can be drafted: {drafts.error}", Code.GATE_STOPPED, where=recipe.name)
        file, text = recipe.folder / CASES, ""
        if recipe.cases:
            text = missing_text(drafts) if drafts.drafts else ""
        else:
            try:
                write_atomic(file.absolute(), cases_text(recipe.name, str(cell), drafts).encode())
            except OSError as error:
                sentence = f"cannot write this file: {error.strerror}"
                raise UsageError(sentence, Code.PATH_NOT_USABLE, where=str(file)) from None
        yield CasesResult(recipe.name, target.wheel.name, cell, drafts, None if recipe.cases else file, text)


def _target(recipe: Recipe, finder: TargetFinder, store: Store, dist: Path) -> SmokeTarget:
    """The newest wheel that fits the selection: one that was built from the folder of the recipe, or one of `dist`."""
    if isinstance(recipe.source, WheelSource):
        return finder.find([f"{recipe.source.project}=={recipe.source.version}"], dist)[0]
    found = sorted(dist.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime, reverse=True)
    found = [*(stored.wheel for stored in FolderBuilds(store).last(recipe)), *found]
    own = []
    for wheel in found:
        with suppress(InvalidWheelFilename):
            name, version, *_ = parse_wheel_filename(wheel.name)
            if recipe.makes(name) and recipe.is_version(version):
                own.append(wheel)
    cells = {str(cell) for cell in finder.selected_cells(recipe)}
    failed = failed_builds(dist, "there is no wheel of this build", [recipe.name], cells, without_wheel=True)
    if not own:
        raise (
            failed[0]
            if failed
            else NothingSelectedError(
                "the extension has no wheel yet, and a draft needs a wheel",
                Code.NO_WHEEL,
                where=recipe.name,
                hints=[f"run `buildfarm build --ext {recipe.name}` first; a wheel with failed checks is enough"],
            )
        )
    target = finder.find(list(map(str, own)), dist)[0]
    if failed:
        print_warning(f"{recipe.name}: {failed[0].sentence}; the draft is for an earlier wheel, {target.wheel.name}")
    return target


def _drafted(
    target: SmokeTarget, cells: Callable[[str], CellEnvironments], wanted: str, store: Store
) -> tuple[Cell, Drafts]:
    """Draft in the newest cell that this machine provides; `cells` creates the cells of an executor."""
    problem = MissingToolError("no cell of this wheel is available", Code.NO_CELL_HERE, where=target.wheel.name)
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
            raise BuildfarmError(drafts, Code.GATE_STOPPED, where=target.wheel.name)
        return cell, drafts
    raise problem
