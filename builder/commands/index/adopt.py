"""`buildfarm adopt`: test wheels that others built, and publish those that reach the required level."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.cli.options import (
    IndexOption,
    JsonOption,
    NoPythonDownloadsOption,
    QuietOption,
    SelectOptions,
    StoreOption,
    VerboseOption,
    examples,
)
from builder.cli.output import print_data
from builder.commands.folders import new_index, open_store
from builder.commands.index.foreign_wheels import ForeignWheel, ForeignWheels
from builder.commands.index.publish import RequireOption, ToOption, publish_json, publish_text, publish_wheel
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
from builder.result import PublishOutcome, PublishResult
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


@dataclass(frozen=True, kw_only=True)
class AdoptOptions(SelectOptions):
    """The options of `buildfarm adopt`."""

    wheels: ForeignArgument
    to: ToOption
    require: RequireOption = "cpu"
    matrix: RecipesOption = None
    index: IndexOption = ""
    no_python_downloads: NoPythonDownloadsOption = False
    store: StoreOption = None
    quiet: QuietOption = False
    verbose: VerboseOption = False
    as_json: JsonOption = False


def adopt(options: AdoptOptions) -> None:
    """Test wheels that others built, and put them into a package index. Builds nothing.

    Each wheel gets the checks that `build` runs, and the level of `publish --require` applies to each tested cell.

    A wheel is tested in each cell that it claims, by its tags, its METADATA, its version and its libraries, with the
    newest patch of each torch series. --torch, --cuda and --python leave out cells.

    A cell that this machine cannot make is reported as not run, and the wheel is not published for this cell.
    """
    set_verbosity(quiet=options.quiet, verbose=options.verbose)
    required, select = levels_of(options.require), options.select
    opened = open_store(options.store)
    with new_index(local_path(options.to)):
        repository, progress = Repository(open_objects(options.to)), Progress()
        pythons = _selected_pythons(select)
        torch_index, recipes = _read_recipes(options.matrix, select)
        environments = Environments(opened, torch_index, python_downloads=not options.no_python_downloads)
        found = ForeignWheels(opened.root / "sources", options.index, pythons).find(options.wheels)
        adopter = _Adopter(required, select, repository, opened, recipes, WheelProver(opened, environments), progress)
        with progress.shown():
            results = [adopter.adopt(wheel) for wheel in found]
    print_data(publish_json(results, ()) if options.as_json else _text(results, url_of(options.to), required))
    raise typer.Exit(int(Exit.FAILED if any(result.reasons for result in results) else Exit.OK))


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

    def adopt(self, wheel: ForeignWheel) -> PublishResult:
        """Test and publish one wheel; a wheel that cannot be used is a result with the reason."""
        name = wheel.path.name
        self.progress.start(name, self.store.log(f"adopt-{name}"))
        try:
            self.progress.stage(name, "check the file")
            facts = read_facts(wheel.path)
            reason = self._refusal(facts)
            if not reason:
                with open_wheel(wheel.path) as archive:
                    reason = wheel_fault(archive)
            result = _refused(wheel, reason) if reason else self._tested(wheel, facts)
        except UsageError as error:
            result = _refused(wheel, error.sentence)
        self.progress.finish(name, str(result.outcome))
        return result

    def _tested(self, wheel: ForeignWheel, facts: WheelFacts) -> PublishResult:
        """Test an undamaged wheel in the cells that it claims, and publish it with the proofs of these cells."""
        claimed = claimed_cells(facts, Compat.load(), Platform(f"linux_{os.uname().machine}"))
        cells = selected(claimed.cells, self.select, Compat.load())
        left_out = len(claimed.cells) - len(cells)
        if not cells and set(self.required) != {Level.NONE}:
            reason = (
                "the options leave out every cell that the wheel claims" if left_out else "the wheel claims no cell"
            )
            return _told(_refused(wheel, reason), wheel, claimed.others, left_out)
        subject = replace(foreign_subject(wheel.path, facts, cells, self._recipe(facts)), fault="")
        proofs = self.prover.prove(
            subject,
            log=self.store.log(f"adopt-{wheel.path.name}"),
            stage=lambda text: self.progress.stage(wheel.path.name, text),
            keep_others=recipe_for(facts.name, self.recipes, self.select) is None,
        )
        verification = Verification(self.store, select=self.select)
        proofs = verification.added(wheel.path, proofs, facts=facts, fault="", recipe=subject.recipe)
        not_run = {str(proof.cell): proof.reason for proof in proofs if _is_unmade(proof)}
        used = [proof for proof in proofs if str(proof.cell) not in not_run]
        earlier = _earlier(self.store.proofs(facts.sha256), set(claimed.cells) - set(cells))
        kept = self.repository.kept(facts.filename, facts.sha256)
        new = new_wheel(wheel.path, merged([*used, *earlier], kept.proofs), origin=wheel.origin)
        published = publish_wheel(self.repository, new, used, self.required)
        tested = [str(cell) for cell in cells if str(cell) not in not_run]
        return _told(published, wheel, claimed.others, left_out, tested, not_run, used)

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


def _is_unmade(proof: Proof) -> bool:
    """Whether there was no environment for the cell of a proof."""
    return proof.check is Check.LINKAGE and proof.verdict is Verdict.NOT_RUN


def _earlier(proofs: Sequence[Proof], cells: Collection[Cell]) -> list[Proof]:
    """The proofs of earlier runs in these cells, without cells in which a check failed or that were not tested."""
    bad = {proof.cell for proof in proofs if proof.verdict is Verdict.FAILED or _is_unmade(proof)}
    return [proof for proof in proofs if proof.cell in cells and proof.cell not in bad]


def _is_for(tag: Tag, machine: str) -> bool:
    return tag.platform == "any" or (tag.platform.endswith(f"_{machine}") and "linux" in tag.platform)


def _refused(wheel: ForeignWheel, reason: str) -> PublishResult:
    return _told(PublishResult(wheel.path.name, PublishOutcome.REFUSED, {}, reasons=(reason,)), wheel)


def _told(
    result: PublishResult,
    wheel: ForeignWheel,
    others: Sequence[str] = (),
    left_out: int = 0,
    tested: Sequence[str] = (),
    not_run: Mapping[str, str] = MappingProxyType({}),
    proofs: Sequence[Proof] = (),
) -> PublishResult:
    """The result of `publish`, with where the wheel came from and what happened in its cells."""
    notes = [f"not built here; from {wheel.origin}"]
    if tested:
        notes.append(f"tested in {_first(tested)}")
    notes += [
        f"not run in {_first([cell for cell, why in not_run.items() if why == reason])}: {reason}"
        for reason in dict.fromkeys(not_run.values())
    ]
    if left_out:
        notes.append(f"the options leave out {counted(left_out, 'more cell')} of the wheel")
    about = {
        "built_here": False,
        "origin": wheel.origin,
        "tested": list(tested),
        "not_run": dict(not_run),
        "not_claimed": list(others),
        "left_out": left_out,
        "proofs": [proof.to_json() for proof in proofs],
    }
    return replace(result, notes=(*notes, *(f"not for {sentence}" for sentence in others)), about=about)


def _first(cells: Sequence[str]) -> str:
    shown = ", ".join(cells[:_MOST])
    return f"{shown} and {len(cells) - _MOST} more; --json prints all" if len(cells) > _MOST else shown


def _text(results: Sequence[PublishResult], index: str, required: Sequence[Level]) -> str:
    """As `publish_text`, and what to do about a refusal. A wheel that was refused before a test needs no advice."""
    short = [one for one in results if one.reasons and one.about["proofs"]]
    advice = []
    if short:
        wanted = " and ".join(map(str, required))
        advice += [f"Each tested cell must reach {wanted}. `buildfarm publish --help` explains the levels."]
    if any(proof["verdict"] == Verdict.FAILED for one in short for proof in one.about["proofs"]):
        advice += ["A failed check refuses a wheel at every level. A recipe accepts a known finding with `accepts`."]
    return "\n".join([publish_text(results, index, None), *advice, *([""] if advice else [])])


def foreign_subject(wheel: Path, facts: WheelFacts, cells: Sequence[Cell], recipe: Recipe) -> Subject:
    """What the prover proves about a wheel that others built, in these cells; `cells` may be empty.

    The recipe gives the imports, the cases and the accepted findings. It may say that the wheel needs GPU code.
    """
    claim = foreign_claim(facts, cells, cuda_required=recipe.cuda == "required")
    claim = replace(claim, max_size=recipe.max_size, variants=recipe.variants)
    return Subject(wheel, facts, claim, provided_by_torch(facts), recipe)
