"""`buildfarm adopt`: test wheels that others built, and publish those that reach the required level."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.cli.options import RunOptions, SelectOptions
from builder.commands.folders import new_output, open_store
from builder.commands.index.publish import PublishOutcome, PublishResult, print_published, publish_wheel
from builder.commands.index.verification import Verification
from builder.commands.targets import ForeignWheel, empty_recipe, foreign_wheels, recipe_for, with_imports
from builder.errors import Exit, UsageError
from builder.gate.amounts import counted, join_names
from builder.log import print_warning
from builder.matrix.axes import Platform
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import MATRIX, TORCH_INDEX, Recipe, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.plan import selected, selected_recipes
from builder.option import argument, option
from builder.progress.display import Progress
from builder.proof import Check, Verdict
from builder.proofs.cells.prover import Subject, WheelProver
from builder.proofs.claimed_cells import claimed_cells, foreign_claim, provided_by_torch, uses_torch
from builder.publish.index.levels import Level, levels_of
from builder.publish.index.new_wheel import merged, new_wheel
from builder.publish.index.objects import open_objects, url_of
from builder.publish.index.repository import CONFLICT, Repository
from builder.store import Store, local_path
from builder.wheelfile.archive import wheel_fault
from builder.wheelfile.facts import WheelFacts, open_wheel, read_facts
from builder.wheels.sources.index import how_to_call_ops
from builder.wheels.toolchain.environments import Environments

#: Cells of one kind to print for a wheel; `--json` has all.
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class AdoptOptions(SelectOptions, RunOptions):
    """The options of `buildfarm adopt`."""

    wheels: list[str] = argument("File, folder with wheels, URL, or NAME==VERSION on the package index.", "WHEEL")
    to: str = option(
        "The index: its folder, which is made if it is missing, or s3://BUCKET/PREFIX.", "DIR|URL", default=...
    )
    require: str = "cpu"
    matrix: Path | None = option(
        "The file that lists the recipes, whose cases are run. Default: matrix.yaml if there is one.", "FILE"
    )
    index: str = ""


def adopt(options: AdoptOptions) -> Exit:
    """Test wheels that others built, and put them into a package index. Builds nothing.

    Each wheel gets the checks that `build` runs, and the level of `publish --require` applies to each tested cell.

    A wheel is tested in each cell that it claims, by its tags, its METADATA, its version and its libraries, with the
    newest patch of each torch series. --torch, --cuda and --python leave out cells.

    A cell that this machine cannot make is reported as not run, and the wheel is not published for this cell.

    Examples:
        buildfarm adopt NAME==VERSION --to index --torch 2.11 --python 3.12 --require static
        buildfarm adopt downloads/ https://wheels.example/NAME.whl --to /srv/wheels
    """
    required, select, compat = levels_of(options.require), options.select, Compat.load()
    store = open_store(options.store)
    selected([], select, compat)  # raises UsageError for a wrong selection, before a download
    repository, progress = Repository(open_objects(options.to)), Progress()
    matrix = load_matrix(options.matrix or MATRIX) if options.matrix or MATRIX.is_file() else None
    recipes = load_recipes(matrix) if matrix else ()
    selected_recipes(recipes, select)  # raises UsageError for an unknown extension
    environments = Environments(store, matrix.torch_index if matrix else TORCH_INDEX)
    pythons = [compat.resolve_python(text) for text in select.python]
    found = foreign_wheels(options.wheels, store.root / "sources", options.index, pythons)
    if folder := local_path(options.to):
        new_output(folder, "--to")
    adopter = _Adopter(required, select, repository, store, recipes, WheelProver(store, environments), progress)
    with progress.shown():
        results = list(map(adopter.adopt, found))
    return print_published(results, url_of(options.to), None, as_json=options.as_json)


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
        """Test and publish one wheel; a wheel that cannot be used is a result with the reason.

        The result is that of `publish`, with where the wheel came from and what happened in its cells.
        """
        name = wheel.path.name
        #: Cells that were tested, and others with the reason; how many the options leave out.
        about: dict[str, Any] = {"tested": [], "not_run": {}, "not_claimed": (), "left_out": 0, "proofs": []}
        about |= {"built_here": False, "origin": wheel.origin}
        self.progress.start(name, self.store.log(f"adopt-{name}", Path.cwd()))
        try:
            self.progress.stage(name, "check the file")
            facts = read_facts(wheel.path)
            with open_wheel(wheel.path) as archive:
                reason = self._refusal(facts) or wheel_fault(archive)
            result = _refused(name, reason) if reason else self._tested(wheel, facts, about)
        except UsageError as error:
            result = _refused(name, error.sentence)
        self.progress.finish(name, str(result.outcome))
        return replace(result, notes=(*result.notes, *_notes(about)), about=about)

    def _tested(self, wheel: ForeignWheel, facts: WheelFacts, about: dict[str, Any]) -> PublishResult:
        """Test an undamaged wheel in the cells that it claims, and publish it with the proofs of these cells."""
        name, compat = wheel.path.name, Compat.load()
        claimed = claimed_cells(facts, compat, Platform(f"linux_{os.uname().machine}"))
        cells = selected(claimed.cells, self.select, compat)
        about |= {"not_claimed": claimed.others, "left_out": len(claimed.cells) - len(cells)}
        if not cells and set(self.required) != {Level.NONE}:
            every = "the options leave out every cell that the wheel claims"
            return _refused(name, every if claimed.cells else "the wheel claims no cell")
        own = recipe_for(facts.name, self.recipes, self.select)
        if own is None:
            print_warning(
                f"no recipe is for {facts.name}, so the wheel is imported and no op is called; a recipe of another name"
                f" is taken with --ext NAME; {how_to_call_ops(facts.name, facts.version.partition('+')[0])}"
            )
        # The recipe gives the imports, the cases and the accepted findings. It may say that the wheel needs GPU code.
        recipe = with_imports(own or empty_recipe(facts.name), facts)
        claim = foreign_claim(facts, cells, cuda_required=recipe.cuda == "required")
        claim = replace(claim, max_size=recipe.max_size)
        proofs = self.prover.prove(
            Subject(wheel.path, facts, claim, provided_by_torch(facts), recipe, fault=""),
            log=self.store.log(f"adopt-{name}", Path.cwd()),
            stage=lambda text: self.progress.stage(name, text),
            part=partial(self.progress.part, name),
            keep_others=own is None,
        )
        proofs = Verification(self.store, select=self.select).added(wheel.path, proofs, recipe, facts)
        # Where there was no environment for the cell.
        unmade = [one for one in proofs if one.check is Check.LINKAGE and one.verdict is Verdict.NOT_RUN]
        not_run = {str(one.cell): one.reason for one in unmade}
        used = [proof for proof in proofs if str(proof.cell) not in not_run]
        about |= {"tested": [str(cell) for cell in cells if str(cell) not in not_run], "not_run": not_run}
        about["proofs"] = [proof.to_json() for proof in used]
        kept = self.repository.kept(facts.filename, facts.sha256)
        new = new_wheel(wheel.path, merged(used, kept.proofs), origin=wheel.origin)
        return publish_wheel(self.repository, new, used, self.required)

    def _refusal(self, facts: WheelFacts) -> str:
        """Why nothing about this wheel can be proven, or why it can never be published; empty if it can."""
        platforms, machine = {tag.platform for tag in parse_wheel_filename(facts.filename)[3]}, os.uname().machine
        if not any(one == "any" or (one.endswith(f"_{machine}") and "linux" in one) for one in platforms):
            named = and_list(sorted(platforms))
            return f"the wheel is for {named}, and this machine tests wheels for Linux on {machine}"
        if not facts.libraries or not uses_torch(facts):
            return "this is no torch extension: it has no shared library, or nothing in it uses torch"
        published = self.repository.published(canonicalize_name(facts.name), facts.filename)
        if published and published.sha256 == facts.sha256 and published.farm and published.farm.built_here:
            return "the index has this wheel already, and buildfarm built it"
        return CONFLICT if published and published.sha256 != facts.sha256 else ""


def _refused(name: str, reason: str) -> PublishResult:
    return PublishResult(name, PublishOutcome.REFUSED, {}, reasons=(reason,))


def _notes(about: Mapping[str, Any]) -> Iterator[str]:
    """What to say about the cells of a wheel."""
    yield f"not built here; from {about['origin']}"
    if about["tested"]:
        yield f"tested in {join_names(about['tested'], _MOST)}"
    for reason in dict.fromkeys(about["not_run"].values()):
        cells = [cell for cell, why in about["not_run"].items() if why == reason]
        yield f"not run in {join_names(cells, _MOST)}: {reason}"
    if about["left_out"]:
        yield f"the options leave out {counted(about['left_out'], 'more cell')} of the wheel"
    yield from (f"not for {sentence}" for sentence in about["not_claimed"])
