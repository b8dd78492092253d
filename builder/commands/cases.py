"""`buildfarm cases`: draft the cases of extensions that have been built, in a cell of each wheel."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.utils import parse_wheel_filename

from builder.cli.options import SelectOptions
from builder.commands.building.folder_builds import last_wheels
from builder.commands.folders import DIST, open_store
from builder.commands.targets import SmokeTarget, TargetFinder
from builder.errors import BuildfarmError, Code, MissingToolError, NothingSelectedError
from builder.gate.amounts import counted
from builder.gate.draft.result import CALLED, CUDA_ONLY, TRACING_CHECKS, Drafts, OpDraft, shortened
from builder.log import print_data, print_line
from builder.matrix.axes import Cell
from builder.matrix.compat import and_list
from builder.matrix.config import CASES, MATRIX, Recipe, WheelSource
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.plan import selected_recipes
from builder.progress.display import Progress
from builder.proofs.cells.cell_run import LocalEnvironments
from builder.recipes.new_extension import source_templates
from builder.store import Store, work_name, write_atomic
from builder.wheelfile.compatibility import is_compatible
from builder.wheels.toolchain.environments import Environments

_WIDTH = 118
_literal = partial(json.dumps, ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class CasesOptions(SelectOptions):
    """The options of `buildfarm cases`."""

    matrix: Path = MATRIX
    store: Path | None = None


@dataclass(frozen=True)
class CasesResult:
    """The draft of the cases of one extension."""

    #: extension, cell: its name, and where its ops were called.
    extension: str
    cell: Cell
    drafts: Drafts
    #: What was written; None if the recipe has a cases.py already.
    file: Path | None


def cases(options: CasesOptions) -> None:
    """Draft the cases.py of a built extension: find its ops, and try inputs until each op accepts a call.

    Examples:
        buildfarm cases --ext NAME
        buildfarm cases --ext NAME --torch 2.11 --python 3.12
    """
    print_data("\n".join(map(summary_text, run_cases(options))))


def run_cases(options: CasesOptions) -> Iterator[CasesResult]:
    """Draft the cases of each selected extension; write cases.py where there is none.

    Raises UsageError for a wrong selection, NothingSelectedError when an extension has no wheel, MissingToolError when
    no cell of a wheel is available, BuildfarmError when the wheel cannot be imported.
    """
    matrix = load_matrix(options.matrix)
    recipes = selected_recipes(load_recipes(matrix), options.select)
    store = open_store(options.store)
    environments = Environments(store, matrix.torch_index)
    finder = TargetFinder(matrix, recipes, options.select, cache=store.root / "sources")
    for recipe in recipes:
        target = _target(recipe, finder, store)
        cell, drafts = _drafted(target, LocalEnvironments(environments), store)
        if drafts.error:
            raise BuildfarmError(f"no cases can be drafted: {drafts.error}", Code.CHECKS_FAILED, where=recipe.name)
        file = None if recipe.cases else recipe.folder / CASES
        if file:
            write_atomic(file.absolute(), cases_text(drafts, name=recipe.name, cell=str(cell)).encode())
        yield CasesResult(recipe.name, cell, drafts, file)


def _target(recipe: Recipe, finder: TargetFinder, store: Store) -> SmokeTarget:
    """The newest wheel that fits the selection: one built from the folder of the recipe, or the official one."""
    if isinstance(recipe.source, WheelSource):
        return finder.find([f"{recipe.source.project}=={recipe.source.version}"], DIST)[0]
    named = [(stored.wheel, *parse_wheel_filename(stored.wheel.name)) for stored in last_wheels(store, recipe)]
    own = [str(wheel) for wheel, name, version, *_ in named if recipe.makes(name) and recipe.is_version(version)]
    if not own:
        sentence = "the extension has no wheel yet, and a draft needs a wheel"
        hint = f"run `buildfarm build --ext {recipe.name}` first; a wheel with failed checks is enough"
        raise NothingSelectedError(sentence, Code.NO_WHEEL, where=recipe.name, hints=[hint])
    return finder.find(own, DIST)[0]


def _drafted(target: SmokeTarget, cells: LocalEnvironments, store: Store) -> tuple[Cell, Drafts]:
    """Draft in the newest cell that suits this machine."""
    fitting = [one for one in target.cells if is_compatible(target.wheel.name, one.python)]
    if not fitting:
        sentence = "the wheel needs a newer glibc than this machine has: draft its cases on another machine"
        raise MissingToolError(sentence, Code.PLATFORM_UNSUPPORTED, where=target.wheel.name)
    cell = max(fitting)
    name, place = f"cases-{work_name(target.sha256)}-{cell}", f"{target.wheel.name} in {cell}"
    log, progress = store.log(f"cases-{target.wheel.name}-{cell}", Path.cwd()), Progress()
    progress.start(place, log)
    with (
        progress.shown(),
        store.work(name, lambda who: print_line(f"waiting for {who}, which drafts its cases")) as folder,
        cells.open(cell, folder, owner=store.owner(name), log=log) as environment,
    ):
        environment.install(target.wheel)
        progress.stage(place, "trying inputs for each op")
        drafts = environment.draft_cases(target.recipe)
    if isinstance(drafts, str):
        raise BuildfarmError(drafts, Code.CHECKS_FAILED, where=target.wheel.name)
    return cell, drafts


def cases_text(drafts: Drafts, *, name: str = "", cell: str = "") -> str:
    """Return the cases.py of an extension; without a name what an existing one lacks, to copy into it."""
    environment = source_templates(Path(__file__).parent)
    environment.filters |= {"literal": _literal, "quoted": _quoted, "comment": _comment}
    cases = [draft for draft in drafts.drafts if is_case(draft)]
    left = [draft for draft in drafts.drafts if draft.required and not is_case(draft)]
    template = environment.get_template("drafted_cases.py.j2")
    return template.render(cases=cases, left=left, cuda_only=CUDA_ONLY, width=_WIDTH, name=name, cell=cell)


def is_case(draft: OpDraft) -> bool:
    """Whether the draft becomes a case; the other ops go to NOT_CLAIMED."""
    return draft.state in (CALLED, CUDA_ONLY) and not any("make." in source for source in draft.kwargs.values())


def _comment(draft: OpDraft) -> str:
    text = [draft.signature]
    if draft.state == CUDA_ONLY:
        text.append(f"not called: {draft.reason}; the inputs are a guess")
    elif draft.results:
        text.append(f"returned {', '.join(draft.results)}")
    form = textwrap.TextWrapper(_WIDTH, "        # ", "        #     ", break_long_words=False)
    return "".join(f"{line}\n" for part in text for line in form.wrap(part))


def _quoted(text: str) -> str:
    """Return a Python string of one line; the summary on the terminal has the whole text."""
    return _literal(shortened("".join(letter if letter.isprintable() else " " for letter in text), 90))


def summary_text(result: CasesResult) -> str:
    """Return how many ops were called, which were not and why, and what to do next; or the text to add to cases.py."""
    drafts = result.drafts.drafts
    name, covered = result.extension, bool(result.drafts.covered)
    if not drafts and covered:
        return f"{name}: cases.py names every op and function that was found; there is nothing to draft\n"
    if not drafts:
        return (
            f"{name}: no op, and no function or class with a tensor argument, was found in {result.cell}\n"
            f"  hint: under `imports` in extension.yaml, list every module that loads a shared library\n"
        )
    counts = []
    for required, what in ((True, "op"), (False, "other callable")):
        of_kind = [draft for draft in drafts if draft.required == required]
        called = sum(draft.state == CALLED for draft in of_kind)
        if of_kind:  # counted as the check `ops` counts them
            counts.append(f"{called} of {counted(len(of_kind), what)}{' without a case' if covered else ''}")
    lines = [f"{name}: called successfully in {result.cell}: {', '.join(counts)}"]
    for draft in drafts:
        if draft.state != CALLED:
            kind = "not called (CUDA only)" if draft.state == CUDA_ONLY else "no case"
            lines.append(f"  {kind}: {draft.op}: {draft.reason}")
    lines += _turned_off([draft for draft in drafts if is_case(draft)])
    if result.file:
        do = "replace each GAP in this file by a reference"
        if not any(map(is_case, drafts)):
            do = "no op could be called: write a Case for each op of NOT_CLAIMED in this file"
        lines += [
            f"wrote {result.file}",
            f"next: {do}, then run your `buildfarm build`"
            " command again: it tests the wheel with the cases, and compiles only if the source has changed",
        ]
    else:
        lines += [
            "cases.py was not changed; add these lines to cases.py, then run your `buildfarm build` command again:",
            "",
            cases_text(result.drafts),
        ]
    return "\n".join(lines) + "\n"


def _turned_off(cases: Sequence[OpDraft]) -> Iterator[str]:
    """Name the checks that the drafted cases turn off, so that no defect is hidden; code to copy is not indented."""
    unclaimed = f"so the cases do not claim {and_list(TRACING_CHECKS)}. To claim them, remove `not_claimed`, and"
    lacking = [draft for draft in cases if draft.lacks_fake_kernel]
    if unknown := [draft.op for draft in lacking if not draft.fake]:
        yield (
            f"  torch.compile cannot use {', '.join(unknown)}: no fake kernel, {unclaimed} register a function"
            f' in the Python package with torch.library.register_fake("{unknown[0]}"), which compares the devices of'
            " the tensors and returns an empty tensor like the result"
        )
    if learned := [draft for draft in lacking if draft.fake]:
        yield (
            f"  torch.compile cannot use {', '.join(draft.op for draft in learned)}: no fake kernel, {unclaimed}"
            " paste these functions, which fit the shapes of every call, into the Python package:"
        )
        for draft in learned:
            yield from ("", *draft.fake.splitlines())
        yield ""
