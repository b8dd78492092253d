"""`buildfarm adopt`: test wheels that others built, and publish those that reach the required level."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.cli.options import (
    CudaOption,
    ExtOption,
    IndexOption,
    JsonOption,
    NoPythonDownloadsOption,
    PythonOption,
    QuietOption,
    StoreOption,
    TorchOption,
    VerboseOption,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.commands.folders import new_index, open_store
from builder.commands.index.foreign_wheels import ForeignWheel, ForeignWheels
from builder.commands.index.publish import RequireOption, ToOption, publish_data, publish_text, publish_wheel
from builder.commands.index.verification import Verification
from builder.commands.smoke_targets import empty_recipe, recipe_for, selected_recipes, with_imports
from builder.errors import Exit, UsageError
from builder.gate.amounts import counted
from builder.log import print_warning, set_verbosity
from builder.matrix.axes import Cell, Platform, Python
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import MATRIX, TORCH_INDEX, Recipe, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.selection import selected
from builder.progress.display import Progress
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.prover import Subject, WheelProver
from builder.proofs.claimed_cells import claimed_cells, foreign_claim, provided_by_torch, uses_torch
from builder.publish.index.levels import Level, levels_of
from builder.publish.index.new_wheel import merged, new_wheel
from builder.publish.index.objects import open_objects, url_of
from builder.publish.index.repository import Repository
from builder.result import AdoptResult, PublishOutcome, PublishResult
from builder.store import Store, local_path
from builder.wheelfile.archive import wheel_fault
from builder.wheelfile.facts import WheelFacts, open_wheel, read_facts
from builder.wheels.toolchain.environments import Environments

EXAMPLES = examples(
    "buildfarm adopt NAME==VERSION --to index --torch 2.11 --python 3.12 --require static",
    "buildfarm adopt downloads/ https://wheels.example/NAME.whl --to /srv/wheels",
)

ForeignArgument = Annotated[
    list[str],
    typer.Argument(metavar="WHEEL", help="File, folder with wheels, URL, or NAME==VERSION on the package index."),
]
RecipesOption = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="The file that lists the recipes, whose cases are run. Default: matrix.yaml if there is one.",
    ),
]

#: Cells of one kind to print for a wheel; `--json` has all.
_MOST = 8


def adopt(
    to: ToOption,
    wheels: ForeignArgument,
    require: RequireOption = "cpu",
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    matrix: RecipesOption = None,
    index: IndexOption = "",
    no_python_downloads: NoPythonDownloadsOption = False,
    store: StoreOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Test wheels that others built, and put them into a package index. Builds nothing.

    Each wheel gets the checks that `build` runs, and the level of `publish --require` applies to each tested cell.

    A wheel is tested in each cell that it claims, by its tags, its METADATA, its version and its libraries, with the
    newest patch of each torch series. --torch, --cuda and --python leave out cells.

    A cell that this machine cannot make is reported as not run, and the wheel is not published for this cell.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    required, select = levels_of(require), selection(torch, cuda, python, ext)
    opened = open_store(store)
    with new_index(local_path(to)):
        repository, progress = Repository(open_objects(to)), Progress()
        pythons = _selected_pythons(select)
        torch_index, recipes = _read_recipes(matrix, select)
        environments = Environments(opened, torch_index, python_downloads=not no_python_downloads)
        found = ForeignWheels(opened.root / "sources", index, pythons).find(wheels)
        adopter = _Adopter(required, select, repository, opened, recipes, WheelProver(opened, environments), progress)
        with progress.shown():
            results = [adopter.adopt(wheel) for wheel in found]
    print_data(_json(results) if as_json else _text(results, url_of(to), required))
    raise typer.Exit(int(Exit.FAILED if any(result.published.reasons for result in results) else Exit.OK))


def _selected_pythons(select: Selection) -> list[Python]:
    """The selected Pythons. Raises UsageError for a wrong selection, before a download."""
    compat = Compat.load()
    selected([], select, compat)
    return [compat.resolve_python(text) for text in select.python]


def _read_recipes(path: Path | None, select: Selection) -> tuple[str, Sequence[Recipe]]:
    """The index of torch and the recipes of a matrix; None: `matrix.yaml` if there is one.

    Raises UsageError for a wrong file, and for the selection of an unknown extension.
    """
    matrix = load_matrix(path or MATRIX) if path or MATRIX.is_file() else None
    recipes = load_recipes(matrix) if matrix else ()
    selected_recipes(recipes, select)
    return matrix.torch_index if matrix else TORCH_INDEX, recipes


@dataclass(frozen=True)
class _Adopter:
    """What the wheels of a run share."""

    required: Sequence[Level]
    select: Selection
    repository: Repository
    store: Store
    recipes: Sequence[Recipe]
    prover: WheelProver
    progress: Progress

    def adopt(self, wheel: ForeignWheel) -> AdoptResult:
        """Check, test and publish one wheel; a wheel that cannot be used is a result with the reason."""
        name = wheel.path.name
        self.progress.start(name, self.store.log(f"adopt-{name}"))
        try:
            result = self._adopt(wheel)
        except UsageError as error:
            result = _refused(wheel, error.sentence)
        self.progress.finish(name, str(result.published.outcome))
        return result

    def _adopt(self, wheel: ForeignWheel) -> AdoptResult:
        self.progress.stage(wheel.path.name, "check the file")
        facts = read_facts(wheel.path)
        if reason := self._refusal(facts):
            return _refused(wheel, reason)
        with open_wheel(wheel.path) as archive:
            if fault := wheel_fault(archive):
                return _refused(wheel, fault)
        platform = Platform(f"linux_{os.uname().machine}")
        claimed = claimed_cells(facts, Compat.load(), platform)
        cells = selected(claimed.cells, self.select, Compat.load())
        left_out = len(claimed.cells) - len(cells)
        if not cells and set(self.required) != {Level.NONE}:
            reason = (
                "the options leave out every cell that the wheel claims" if left_out else "the wheel claims no cell"
            )
            return replace(_refused(wheel, reason), others=claimed.others, left_out=left_out)
        subject = replace(foreign_subject(wheel.path, facts, cells, self._recipe(facts)), fault=fault)
        proofs = self.prover.prove_wheel(
            subject,
            log=self.store.log(f"adopt-{wheel.path.name}"),
            stage=lambda text: self.progress.stage(wheel.path.name, text),
            keep_others=recipe_for(facts.name, self.recipes, self.select) is None,
        )
        verification = Verification(self.store, select=self.select)
        proofs = verification.added(wheel.path, proofs, facts=facts, fault=fault, recipe=subject.recipe)
        not_run = _not_run(proofs)
        used = [proof for proof in proofs if str(proof.cell) not in not_run]
        earlier = _earlier(self.store.proofs(facts.sha256), set(claimed.cells) - set(cells))
        kept = self.repository.kept(facts.filename, facts.sha256)
        new = new_wheel(wheel.path, merged([*used, *earlier], kept.proofs), origin=wheel.origin)
        published = publish_wheel(self.repository, new, used, self.required)
        tested = tuple(cell for cell in cells if str(cell) not in not_run)
        return AdoptResult(published, wheel.origin, tested, not_run, claimed.others, left_out, tuple(used))

    def _refusal(self, facts: WheelFacts) -> str:
        """Why nothing about this wheel can be proven, or why it can never be published; empty if it can."""
        tags, machine = parse_wheel_filename(facts.filename)[3], os.uname().machine
        if not any(_is_for(tag, machine) for tag in tags):
            platforms = and_list(sorted({tag.platform for tag in tags}))
            return f"the wheel is for {platforms}, and this machine tests wheels for Linux on {machine}"
        if not facts.libraries:
            return (
                "the wheel contains no shared library, so there is nothing to prove; `buildfarm publish --require none`"
                " puts it into the index without a test"
            )
        if not uses_torch(facts):
            return "this is no torch extension: no library uses torch, and METADATA does not require torch"
        published = self.repository.published(canonicalize_name(facts.name), facts.filename)
        if published and published.sha256 == facts.sha256 and published.farm and published.farm.built_here:
            return "the index has this wheel already, and buildfarm built it"
        return self.repository.conflict(facts.filename, facts.sha256)

    def _recipe(self, facts: WheelFacts) -> Recipe:
        recipe = recipe_for(facts.name, self.recipes, self.select)
        if recipe is None:
            print_warning(
                f"no recipe is for {facts.name}, so the wheel is imported and no op is called; a recipe with cases is"
                " named by its `name`, or by --ext NAME"
            )
        return with_imports(recipe or empty_recipe(facts.name), facts)


def _not_run(proofs: Sequence[Proof]) -> dict[str, str]:
    """The cells for which there was no environment, with the reason."""
    return {
        str(proof.cell): proof.reason
        for proof in proofs
        if proof.check is Check.LINKAGE and proof.verdict is Verdict.NOT_RUN
    }


def _earlier(proofs: Sequence[Proof], cells: Collection[Cell]) -> list[Proof]:
    """The proofs of earlier runs in these cells, without cells in which a check failed or that were not tested."""
    bad = {
        proof.cell
        for proof in proofs
        if proof.verdict is Verdict.FAILED or (proof.check is Check.LINKAGE and proof.verdict is Verdict.NOT_RUN)
    }
    return [proof for proof in proofs if proof.cell in cells and proof.cell not in bad]


def _is_for(tag: Tag, machine: str) -> bool:
    return tag.platform == "any" or (tag.platform.endswith(f"_{machine}") and "linux" in tag.platform)


def _refused(wheel: ForeignWheel, reason: str) -> AdoptResult:
    published = PublishResult(wheel.path.name, PublishOutcome.REFUSED, {}, reasons=(reason,))
    return AdoptResult(published, wheel.origin)


def _text(results: Sequence[AdoptResult], index: str, required: Sequence[Level]) -> str:
    """As `publish_text`, and for each wheel where it came from and its cells; what to do about a refusal."""
    text = publish_text([replace(one.published, notes=tuple(_notes(one))) for one in results], index, None)
    # A wheel that was refused before a test needs no advice.
    short = [one for one in results if one.published.reasons and one.proofs]
    advice = []
    if short:
        wanted = " and ".join(map(str, required))
        advice += [f"Each tested cell must reach {wanted}. `buildfarm publish --help` explains the levels."]
    if any(proof.verdict is Verdict.FAILED for one in short for proof in one.proofs):
        advice += ["A failed check refuses a wheel at every level. A recipe accepts a known finding with `accepts`."]
    return "\n".join([text, *advice, ""]) if advice else text


def _json(results: Sequence[AdoptResult]) -> str:
    """Everything about each wheel."""
    data = [
        publish_data(one.published)
        | {
            "built_here": False,
            "origin": one.origin,
            "tested": [str(cell) for cell in one.cells],
            "not_run": one.not_run,
            "not_claimed": list(one.others),
            "left_out": one.left_out,
            "proofs": [proof.to_json() for proof in one.proofs],
        }
        for one in results
    ]
    return json.dumps(data, indent=1) + "\n"


def _notes(result: AdoptResult) -> Iterator[str]:
    yield f"not built here; from {result.origin}"
    if result.cells:
        yield f"tested in {_first([str(cell) for cell in result.cells])}"
    reasons: dict[str, list[str]] = {}
    for cell, reason in result.not_run.items():
        reasons.setdefault(reason, []).append(cell)
    for reason, cells in reasons.items():
        yield f"not run in {_first(cells)}: {reason}"
    if result.left_out:
        yield f"the options leave out {counted(result.left_out, 'more cell')} of the wheel"
    for sentence in result.others:
        yield f"not for {sentence}"


def _first(cells: Sequence[str]) -> str:
    shown = ", ".join(cells[:_MOST])
    return f"{shown} and {len(cells) - _MOST} more; --json prints all" if len(cells) > _MOST else shown


def foreign_subject(wheel: Path, facts: WheelFacts, cells: Sequence[Cell], recipe: Recipe) -> Subject:
    """What the prover proves about a wheel that others built, in these cells; `cells` may be empty.

    The recipe gives the imports, the cases and the accepted findings. It may say that the wheel needs GPU code.
    """
    claim = foreign_claim(facts, cells, cuda_required=recipe.cuda == "required")
    claim = replace(claim, max_size=recipe.max_size, variants=recipe.variants)
    return Subject(wheel, facts, claim, provided_by_torch(facts), recipe)
