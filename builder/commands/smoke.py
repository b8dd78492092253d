"""`buildfarm smoke`: run every op of a wheel in each of its cells, and keep the proofs."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from rich.markup import escape

from builder.cli.options import RunOptions, SelectOptions
from builder.commands.axes import matrix_or_options, reads_unknown
from builder.commands.folders import DIST, open_store
from builder.commands.index.verification import Verification
from builder.commands.targets import SmokeTarget, TargetFinder
from builder.errors import Code, Exit, MissingToolError, UsageError
from builder.gate.amounts import counted
from builder.gate.outcome import NOT_RUN, Answer, without_overload
from builder.gate.pack import pack_file
from builder.gate.report import PlacedOutcome, causes_of, op_lines, where_lines
from builder.log import print_line, print_result, verbosity
from builder.matrix.axes import Cell
from builder.matrix.config import MATRIX, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.plan import selected_recipes
from builder.option import argument, option
from builder.progress.display import Progress
from builder.proof import Check, Proof, Verdict, proofs_json, proofs_path
from builder.proofs.cells.cell_run import CellRunner, cell_environments
from builder.proofs.cells.op_gate import apply_accepts, spec_of
from builder.proofs.cells.prover import cell_basis
from builder.proofs.cells.turns import TURNS
from builder.proofs.claimed_cells import foreign_claim
from builder.proofs.static.linkage import check_linkage_in
from builder.proofs.static.symbol_table import SymbolTable
from builder.publish import terminal
from builder.publish.index.new_wheel import merged, proofs_beside
from builder.publish.proof_lines import counts, findings, gpu_lines, hints_of
from builder.publish.results import SmokeResult, smoke_report_json
from builder.publish.runs.history import save_run
from builder.publish.runs.markdown import append_summary
from builder.store import Store, write_if_changed
from builder.wheelfile.facts import read_facts

#: Checks of a file that ask about other cells than those of `smoke`.
_NOT_FOR_CELLS = (Check.WINDOW, Check.GPUS, Check.LINKAGE)
#: Checks of ops that call none.
_NO_CALL = (Check.OPS, Check.DISPATCH)


class Results:
    """The results of one run; their proofs go into the store, and into the file beside a wheel that `build` wrote."""

    def __init__(self, store: Store, targets: Sequence[SmokeTarget]) -> None:
        """Raises UsageError for an unusable file of proofs beside a wheel."""
        self._store = store
        self._beside = {target.wheel: proofs_beside(target.wheel, target.sha256) for target in targets}
        self._files: dict[str, tuple[Proof, ...]] = {}
        self._adding = threading.Lock()  # cells are tested side by side
        #: the proofs of each wheel from this run and from earlier ones, by its file name
        self.known: dict[str, list[Proof]] = {}
        self.made: dict[tuple[Path, Cell], SmokeResult] = {}

    def add(self, target: SmokeTarget, cell: Cell, found: Sequence[Proof], answer: Answer | None) -> str:
        """Judge and save the proofs of a wheel in a cell; return the end of the cell in the lines of the progress."""
        basis = cell_basis(target.recipe)
        proofs = tuple(apply_accepts([replace(proof, basis=basis[proof.check]) for proof in found], target.recipe))
        with self._adding:
            self._store.save_proofs(proofs)
            beside = self._beside[target.wheel]
            known = beside or self._store.proofs(target.sha256)
            if target.sha256 not in self._files:
                self._files[target.sha256] = self._about_file(target, known)
            about_file = self._files[target.sha256]
            result = SmokeResult(target.wheel.name, cell, (*about_file, *proofs), answer)
            self.made[target.wheel, cell] = result
            known = self.known[result.subject] = merged(known, about_file, proofs)
            if beside:
                self._beside[target.wheel] = known
                write_if_changed(proofs_path(target.wheel), proofs_json(known))
        failed = sum(proof.verdict is Verdict.FAILED for proof in result.proofs)
        return f"{failed} failed" if failed else "tested"

    def lack_linkage(self, target: SmokeTarget, cell: Cell) -> bool:
        """Whether the build of a wheel could not link it in a cell, which its machine does not have."""
        known = self._beside[target.wheel] or self._store.proofs(target.sha256)
        found = [one for one in known if (one.cell, one.check) == (cell, Check.LINKAGE)]
        return bool(found) and not any(one.has_run for one in found)

    def _about_file(self, target: SmokeTarget, known: Sequence[Proof]) -> tuple[Proof, ...]:
        """The checks of the wheel file, as `publish` makes them: those that `build` made do not run again."""
        earlier = [proof for proof in known if proof.cell is None]
        found = Verification(self._store).added(target.wheel, earlier, target.recipe)
        return tuple(
            _of_cells(proof)
            for proof in found
            if proof.cell is None and (proof.verdict is Verdict.FAILED or proof.check not in _NOT_FOR_CELLS)
        )


def _of_cells(proof: Proof) -> Proof:
    """The check `tags`, if what fails is the promise of the tag about other systems than those of the cells."""
    promise = proof.evidence.get("file") == proof.evidence.get("wheel")
    if proof.check is not Check.TAGS or proof.verdict is not Verdict.FAILED or not promise:
        return proof
    reason = f"`smoke` tests no other system than that of the cell: {proof.reason}"
    return replace(proof, verdict=Verdict.NOT_RUN, reason=reason, evidence={**proof.evidence, "remark": True})


@dataclass(frozen=True, kw_only=True)
class SmokeOptions(SelectOptions, RunOptions):
    """The options of `buildfarm smoke`."""

    wheels: list[str] | None = argument(
        "File, URL or NAME==VERSION. Default: the wheels in --dist and the official wheels that recipes name.",
        "WHEEL",
        default=None,
    )
    matrix: Path | None = option(
        "The file that lists torch, CUDA, Python and the extensions. Default: matrix.yaml if there is one.", "FILE"
    )
    index: str = ""
    pack: Path | None = option(
        "Write the checks and the cases of one extension to FILE. Copy it to a GPU machine; run `python FILE`.", "FILE"
    )
    executor: Literal["local", "docker"] = option(
        "local: run on this machine. docker: run in the runtime image of each cell, with the GPU if there is one.",
        default="local",
    )
    dist: Path = option("Folder whose wheels are tested if no WHEEL is given.", "DIR", default=DIST)
    summary: Path | None = None


@reads_unknown
def smoke(options: SmokeOptions) -> Exit:
    """Test finished wheels: call every op in each cell and run the checks of ops. Builds nothing.

    A named wheel needs no matrix.yaml. Without the file, it is tested with --torch, --cuda and --python; without these
    options, with the versions of the current environment.

    Examples:
        buildfarm smoke NAME.whl --torch 2.11 --cuda 13.0 --python 3.12
        buildfarm smoke NAME==VERSION --executor docker --summary smoke.md
        buildfarm smoke --ext NAME --pack gate.pyz
    """
    if options.pack:
        if options.wheels:
            sentence = "cannot be combined with WHEEL: --pack runs no check"
            raise UsageError(sentence, Code.COMMAND_LINE_INVALID, where="--pack")
        file = pack_gate(options.matrix or MATRIX, options.select, options.pack)
        print_line(f"wrote {file}; run `python {file.name}` in an environment with torch and the wheel")
        return Exit.OK
    results = run_smoke(options)
    data = [{"subject": one.subject, "cell": one.cell, "proofs": one.proofs} for one in results]
    print_result(smoke_text(results), data, as_json=options.as_json)
    if {proof.verdict for result in results for proof in result.proofs if proof.cell} == {Verdict.NOT_RUN}:
        raise MissingToolError(
            "no check could run in any of the cells", Code.NO_CELL_HERE, hints=["the output above gives the reasons"]
        )
    failed = any(proof.verdict is Verdict.FAILED for result in results for proof in result.proofs)
    return Exit.FAILED if failed else Exit.OK


def run_smoke(options: SmokeOptions) -> list[SmokeResult]:
    """Test each wheel in each of its cells, and save the proofs of each cell at once.

    A wheel that `build` wrote has a file with proofs beside it. The new proofs are added to this file.

    Raises UsageError for an unusable wheel, file of proofs or selection, NothingSelectedError when no cell is left,
    MissingToolError when containers are wanted and there is no container engine.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    wheels = tuple(options.wheels or ())
    matrix = matrix_or_options(options.matrix, options.select, wheels)
    recipes = load_recipes(matrix)
    store = open_store(options.store)
    cells = cell_environments(options.executor, matrix, store)
    finder = TargetFinder(matrix, recipes, options.select, cache=store.root / "sources", index=options.index)
    targets, progress = finder.find(wheels, options.dist), Progress()
    results = Results(store, targets)
    jobs = [(target, cell) for target in targets for cell in target.cells]
    if options.saved:
        from builder.images.saved import check_cells  # noqa: PLC0415 - loads slowly

        check_cells([str(cell) for _, cell in jobs], options.executor)

    def test(target: SmokeTarget, cell: Cell) -> None:
        name, log = f"{target.wheel.name} in {cell}", store.log(f"smoke-{target.wheel.name}-{cell}", Path.cwd())
        progress.start(name, log)
        linkage = results.lack_linkage(target, cell)

        def stage(step: str) -> None:  # the line of the progress names the cell already
            progress.stage(name, step.removesuffix(f" in {cell}"))

        runner = CellRunner(store, cells, log, stage, linkage=linkage)
        run = runner.run(cell, target.wheel, target.sha256, target.recipe)
        found = (*run.proofs, *([] if run.symbols is None else [_linked(target, cell, run.symbols)]))
        progress.finish(name, results.add(target, cell, found, run.answer))

    with progress.shown():
        most = None if options.executor == "local" else 1  # each container may use all the memory
        TURNS.side_by_side([partial(test, *job) for job in jobs], store.root, most=most)
    made = [results.made[target.wheel, cell] for target, cell in jobs]
    report = smoke_report_json(made, results.known)
    saved = save_run(store, started, time.monotonic() - clock, report, timeline=progress.timeline())
    if options.summary:
        append_summary(options.summary, saved)
    return made


def _linked(target: SmokeTarget, cell: Cell, symbols: SymbolTable) -> Proof:
    """The check `linkage` of a wheel of a recipe."""
    facts = read_facts(target.wheel)
    claim = replace(foreign_claim(facts, [cell]), foreign=False)
    return check_linkage_in(facts, claim, cell, symbols)


def pack_gate(matrix: Path, select: Selection, target: Path) -> Path:
    """Write the op gate and the cases of one extension to one file, for a machine that has only torch and the wheel.

    Raises UsageError unless exactly one extension is selected, and OSError.
    """
    recipes = selected_recipes(load_recipes(load_matrix(matrix)), select)
    if len(recipes) != 1 or not select.extensions:
        sentence = "name exactly one extension with --ext NAME: the file holds the cases of one extension"
        raise UsageError(sentence, Code.COMMAND_LINE_INVALID, where="--pack")
    return pack_file(target, spec_of(recipes[0], 0), recipes[0].cases)


def smoke_text(results: Sequence[SmokeResult]) -> str:
    """The cells of each wheel, why checks did not run, and last what failed; with `--verbose` also a line for each op.

    A cause that several wheels share has one line.
    """
    parts: list[str] = []
    found: list[PlacedOutcome] = []
    for subject in dict.fromkeys(result.subject for result in results):
        cells = [result for result in results if result.subject == subject]
        proofs = [proof for result in cells for proof in result.proofs if proof.cell or result is cells[0]]
        found += findings(proofs, subject)
        parts += [escape(subject), *map(_cell_line, cells)]
        if len(cells) == 1 and (answer := cells[0].answer):
            parts += map(escape, where_lines(answer.where))
        for result in cells if verbosity.verbose else ():
            parts += ["", *map(escape, [str(result.cell), *op_lines(result.answer)])] if result.answer else []
        parts += [*(terminal.marked(text) for text in gpu_lines(proofs, terminal.output_width())), ""]
    hints = terminal.hint_lines(hint for result in results for hint in hints_of(result.proofs))
    return terminal.to_text(*parts, *terminal.cause_lines(causes_of(found)), *hints)


def _cell_line(result: SmokeResult) -> str:
    """A cell in rich markup: how many of the ops were called, and the counts of the checks."""
    outcomes = [one for one in result.answer.outcomes if one.op] if result.answer else []
    ops = {without_overload(one.op) for one in outcomes}
    called = {without_overload(one.op) for one in outcomes if one.verdict != NOT_RUN and one.check not in _NO_CALL}
    number = f"called {len(called)} of {counted(len(ops), 'op')}; " if ops else ""
    return f"  {result.cell}: {number}checks: {terminal.coloured_counts(counts(result.proofs))}"
