"""`buildfarm adopt`: test wheels that others built, and publish those that reach the required level."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.commands.index.foreign_wheels import ForeignWheel, ForeignWheels
from builder.commands.index.publish import publish_wheel
from builder.commands.index.verification import Verification
from builder.commands.smoke.wheel_recipe import empty_recipe, recipe_for, selected_recipes, with_imports
from builder.errors import UsageError
from builder.log import print_warning
from builder.matrix.axes import Cell, Platform
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import TORCH_INDEX, Recipe, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.selection import selected
from builder.progress.display import Progress
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.prover import WheelProver
from builder.proofs.foreign.claimed_cells import claimed_cells
from builder.proofs.foreign.foreign_claim import uses_torch
from builder.proofs.foreign.foreign_wheel import foreign_subject
from builder.publish.index.bar import Level
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.repository import Repository
from builder.result import AdoptResult, PublishOutcome, PublishResult
from builder.store import Store
from builder.wheelfile.facts import WheelFacts, open_wheel, read_facts
from builder.wheelfile.record_file import record_fault
from builder.wheels.toolchain.environments import Environments


@dataclass(frozen=True)
class AdoptOptions:
    """The options of one `buildfarm adopt`.

    Attributes:
        wheels: files, folders, URLs, or NAME==VERSION.
        required: the levels that the proofs of each tested cell must reach.
        select: which of the claimed cells; its extensions name the recipe whose cases are run.
        matrix: the file with the recipes, or None: no recipe.
        index: URL of a package index to ask before the default one, or empty.
        python_downloads: whether uv may download Pythons that this machine lacks.

    """

    wheels: tuple[str, ...]
    required: tuple[Level, ...]
    select: Selection = field(default_factory=Selection)
    matrix: Path | None = None
    index: str = ""
    python_downloads: bool = True


def run_adopt(options: AdoptOptions, repository: Repository, store: Store) -> list[AdoptResult]:
    """Download, check and test each wheel, and publish it at once if its proofs reach every required level.

    Raises UsageError for an argument that names no wheel, and for the selection, before any check; MissingToolError
    when a download fails.
    """
    compat = Compat.load()
    selected([], options.select, compat)  # raises UsageError before a download
    matrix = load_matrix(options.matrix) if options.matrix else None
    recipes = load_recipes(matrix) if matrix else []
    selected_recipes(recipes, options.select)  # raises UsageError for an unknown extension
    environments = Environments(
        store, matrix.torch_index if matrix else TORCH_INDEX, python_downloads=options.python_downloads
    )
    pythons = [compat.resolve_python(text) for text in options.select.python]
    wheels = ForeignWheels(store.root / "sources", options.index, pythons).find(options.wheels)
    progress = Progress()
    adopter = _Adopter(options, repository, store, recipes, WheelProver(store, environments), progress)
    with progress.shown():
        return [adopter.adopt(wheel) for wheel in wheels]


@dataclass(frozen=True)
class _Adopter:
    """What the wheels of a run share."""

    options: AdoptOptions
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
            if fault := record_fault(archive):
                return _refused(wheel, fault)
        platform = Platform(f"linux_{os.uname().machine}")
        claimed = claimed_cells(facts, Compat.load(), platform)
        cells = selected(claimed.cells, self.options.select, Compat.load())
        left_out = len(claimed.cells) - len(cells)
        if not cells and set(self.options.required) != {Level.NONE}:
            reason = (
                "the options leave out every cell that the wheel claims" if left_out else "the wheel claims no cell"
            )
            return replace(_refused(wheel, reason), others=claimed.others, left_out=left_out)
        subject = foreign_subject(wheel.path, facts, cells, self._recipe(facts))
        proofs = self.prover.prove_wheel(
            subject,
            log=self.store.log(f"adopt-{wheel.path.name}"),
            stage=lambda text: self.progress.stage(wheel.path.name, text),
        )
        verification = Verification(self.store, select=self.options.select)
        proofs = verification.added(wheel.path, proofs, facts=facts, fault=fault, recipe=subject.recipe)
        not_run = _not_run(proofs)
        used = [proof for proof in proofs if str(proof.cell) not in not_run]
        earlier = _earlier(self.store.proofs(facts.sha256), set(claimed.cells) - set(cells))
        new = new_wheel(wheel.path, [*used, *earlier], origin=wheel.origin)
        published = publish_wheel(self.repository, new, used, self.options.required)
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
        recipe = recipe_for(facts.name, self.recipes, self.options.select)
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
