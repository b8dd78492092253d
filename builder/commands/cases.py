"""`buildfarm cases`: draft the cases of extensions that have been built, in a cell of each wheel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
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
from builder.commands.cases_text import cases_text, is_case, missing_text
from builder.commands.folders import DIST, failed_builds, open_store
from builder.commands.smoke_targets import SmokeTarget, TargetFinder, selected_recipes
from builder.errors import BuildfarmError, Code, MissingToolError, NothingSelectedError, UsageError
from builder.gate.amounts import counted
from builder.gate.draft.result import CALLED, CUDA_ONLY, TRACING_CHECKS, Drafts, OpDraft
from builder.log import print_line, print_warning
from builder.matrix.axes import Cell
from builder.matrix.compat import and_list
from builder.matrix.config import CASES, MATRIX, Recipe, WheelSource
from builder.matrix.load import load_matrix, load_recipes
from builder.proofs.cells.cell_environment import CellEnvironments, cell_environments
from builder.result import CasesResult
from builder.store import Store, work_name, write_atomic
from builder.wheelfile.compatibility import is_compatible
from builder.wheels.build_dir import clear_abandoned

# What `buildfarm cases` prints: how many ops were called, which were not and why, and what to do next.


def summary_text(results: Sequence[CasesResult]) -> str:
    """A paragraph for each extension; for a recipe that has cases, the text to add to its cases.py."""
    return "\n".join(f"{_summary(result)}{_stale(result)}" for result in results)


def summary_json(results: Sequence[CasesResult]) -> str:
    """Every draft, for programs."""
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
    return json.dumps(data, indent=1) + "\n"


def _summary(result: CasesResult) -> str:
    drafts = result.drafts.drafts
    name, covered = result.extension, len(result.drafts.covered)
    if not drafts and covered:
        return f"{name}: cases.py names every op and function that was found; there is nothing to draft\n"
    if not drafts:
        return (
            f"{name}: no op, and no function or class with a tensor argument, was found in {result.cell}\n"
            "  hint: under `imports` in extension.yaml, list every module that loads a shared library\n"
        )
    lines = [f"{name}: called successfully in {result.cell}: {', '.join(_counts(drafts, bool(covered)))}"]
    lines += [f"  {_why_not(draft)}" for draft in drafts if draft.state != CALLED]
    lines += [f"  {line}".rstrip() for line in _not_claimed(drafts)]
    if result.file:
        move = (
            ""
            if result.file.absolute() == result.cases.absolute()
            else f" move the text of this file to {result.cases},"
        )
        do = "replace each GAP in this file by a reference"
        if not any(map(is_case, drafts)):
            do = "no op could be called: write a Case for each op of NOT_CLAIMED in this file"
        lines += [
            f"wrote {result.file}",
            f"next: {do},{move} then run your `buildfarm build`"
            " command again: it tests the wheel with the cases and does not compile",
        ]
    else:
        lines += [
            "cases.py was not changed; add these lines to cases.py, then run your `buildfarm build` command again:",
            "",
            result.text,
        ]
    return "\n".join(lines) + "\n"


def _not_claimed(drafts: Sequence[OpDraft]) -> Iterator[str]:
    """Name the checks that the drafted cases turn off, so that no defect is hidden."""
    cases = [draft for draft in drafts if is_case(draft)]
    checks = and_list(TRACING_CHECKS)
    lacking = [draft for draft in cases if draft.lacks_fake_kernel]
    if unknown := [draft.op for draft in lacking if not draft.fake]:
        yield (
            f"no fake kernel: {', '.join(unknown)}: the cases do not claim {checks}; to claim them, register a function"
            f' in the Python package with torch.library.register_fake("{unknown[0]}"), which compares the devices of'
            " the tensors and returns an empty tensor like the result, and remove `not_claimed`"
        )
    if learned := [draft for draft in lacking if draft.fake]:
        yield (
            f"no fake kernel: {', '.join(draft.op for draft in learned)}: the cases do not claim {checks}; to claim"
            " them, add these functions, which fit the shapes of every call, to the Python package, and remove"
            " `not_claimed`:"
        )
        for draft in learned:
            yield from ("", *draft.fake.splitlines())
        yield ""
    for draft in cases:
        for check, reason in {**draft.empty_unclaimed, **draft.unclaimed}.items():
            yield f"not claimed: {draft.op}: {check} fails: {reason}"


def _stale(result: CasesResult) -> str:
    """What to change in the cases of ops that got a CPU kernel later."""
    return "".join(
        f'{result.extension}: in cases.py, remove `devices=["cuda"]` from the cases of {op}: the op has a CPU kernel\n'
        for op in result.drafts.stale
    )


def _counts(drafts: Sequence[OpDraft], some_covered: bool) -> Iterator[str]:
    """Count the ops, as the check `ops` counts them, and the other functions and classes."""
    for required, what in ((True, "op"), (False, "other callable")):
        of_kind = [draft for draft in drafts if draft.required == required]
        called = sum(draft.state == CALLED for draft in of_kind)
        if of_kind:
            yield f"{called} of {counted(len(of_kind), what)}{' without a case' if some_covered else ''}"


def _why_not(draft: OpDraft) -> str:
    kind = "not called (CUDA only)" if draft.state == CUDA_ONLY else "no case"
    return f"{kind}: {draft.op}: {draft.reason}"


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
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the draft to FILE, which must not exist. Default: cases.py in the folder of the recipe.",
        ),
    ] = None
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
        buildfarm cases --ext NAME --torch 2.11 --python 3.12 --out draft.py
        buildfarm cases --ext NAME --torch 2.2 --cuda 12.1 --executor docker
    """
    results = list(run_cases(options))
    print_data(summary_json(results) if options.as_json else summary_text(results))


def run_cases(options: CasesOptions) -> Iterator[CasesResult]:
    """Draft the cases of each selected extension; write cases.py where there is none.

    Raises UsageError for a wrong selection or an existing `out`, NothingSelectedError when an extension has no wheel,
    MissingToolError when no cell of a wheel is available, BuildfarmError when the wheel cannot be imported.
    """
    matrix = load_matrix(options.matrix)
    recipes = selected_recipes(load_recipes(matrix), options.select)
    if options.out and len(recipes) != 1:
        raise UsageError(
            "name exactly one extension with --ext NAME: the file holds the cases of one extension",
            Code.OPTION_MISSING,
            where="--out",
        )
    if options.out and options.out.exists():
        raise UsageError(
            "the file exists; `buildfarm cases` does not overwrite files", Code.FILE_EXISTS, where=str(options.out)
        )
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
        yield _written(recipe, target, cell, drafts, options.out)


def _target(recipe: Recipe, finder: TargetFinder, store: Store, dist: Path) -> SmokeTarget:
    """The newest wheel that fits the selection: one that was built from the folder of the recipe, or one of `dist`."""
    if isinstance(recipe.source, WheelSource):
        return finder.find([f"{recipe.source.project}=={recipe.source.version}"], dist)[0]
    found = sorted(dist.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime, reverse=True)
    found = [*(stored.wheel for stored in FolderBuilds(store).last(recipe)), *found]
    own = [wheel for wheel in found if _is_wheel_of(wheel, recipe)]
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
        raise UsageError(f"cannot write this file: {error.strerror}", Code.PATH_NOT_USABLE, where=str(file)) from None
    return CasesResult(name, wheel, cell, drafts, file, "", cases)
