"""`buildfarm smoke`: run every op of a wheel in each of its cells, and keep the proofs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.commands.folders import open_store
from builder.commands.smoke.smoke_targets import SmokeTarget, TargetFinder, selected_recipes
from builder.errors import UsageError
from builder.gate.pack import pack_file
from builder.log import print_warning
from builder.matrix.axes import Cell
from builder.matrix.config import Matrix, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.progress.display import Progress
from builder.proof import Proof, Verdict
from builder.proofs.cells.acceptance import judge, unused_accepts
from builder.proofs.cells.cell_environment import CellEnvironments
from builder.proofs.cells.cell_run import CellRunner
from builder.proofs.cells.local import LocalEnvironments
from builder.proofs.cells.op_gate import spec_of
from builder.proofs.cells.prover import cell_basis
from builder.publish.index.new_wheel import merged, proofs_beside, proofs_json, proofs_path
from builder.publish.unchanged import write_if_changed
from builder.result import SmokeResult
from builder.store import Store
from builder.wheels.toolchain.environments import Environments


@dataclass(frozen=True)
class SmokeOptions:
    """The options of one `buildfarm smoke`.

    Attributes:
        matrix: the file matrix.yaml.
        wheels: files, URLs or NAME==VERSION; empty: the wheels in `dist`, and official wheels that recipes name.
        select: which cells and extensions.
        index: URL of a package index to ask before the default one, or empty.
        dist: the folder of the wheels to test by default.
        store: its folder, or None for the user's default store.
        executor: `local` for a uv environment per cell, `docker` for a container of each cell's runtime image.
        pull: whether base images that are not on this machine may be pulled.
        python_downloads: whether uv may download Pythons that this machine lacks.

    """

    matrix: Path
    wheels: tuple[str, ...] = ()
    select: Selection = field(default_factory=Selection)
    index: str = ""
    dist: Path = Path("dist")
    store: Path | None = None
    executor: str = "local"
    pull: bool = True
    python_downloads: bool = True


def run_smoke(options: SmokeOptions) -> Iterator[SmokeResult]:
    """Test each wheel in each of its cells, one after the other, and save the proofs of each cell at once.

    A wheel that `build` wrote has a file with proofs beside it. The new proofs are added to this file.

    Raises UsageError for an unusable wheel, file of proofs or selection, NothingSelectedError when no cell is left,
    MissingToolError when containers are wanted and there is no container engine.
    """
    matrix = load_matrix(options.matrix)
    recipes = load_recipes(matrix)
    store = open_store(options.store)
    store.clear_abandoned()
    cells = cell_environments(
        options.executor, matrix, store, python_downloads=options.python_downloads, pull=options.pull
    )
    finder = TargetFinder(matrix, recipes, options.select, cache=store.root / "sources", index=options.index)
    targets, progress = finder.find(options.wheels, options.dist), Progress()
    with progress.shown():
        for target in targets:
            beside = proofs_beside(target.wheel, target.sha256)
            for cell in target.cells:
                result = _smoke_cell(target, cell, store, cells, progress)
                if beside:
                    beside = merged(beside, result.proofs)
                    write_if_changed(proofs_path(target.wheel), proofs_json(beside))
                yield result


def _smoke_cell(
    target: SmokeTarget, cell: Cell, store: Store, cells: CellEnvironments, progress: Progress
) -> SmokeResult:
    """Test one wheel in one cell, and save its proofs."""
    name, log = f"{target.wheel.name} in {cell}", store.log(f"smoke-{target.wheel.name}-{cell}")
    progress.start(name, log)
    runner = CellRunner(store, cells, log, lambda step: progress.stage(name, step.removesuffix(f" in {cell}")))
    run = runner.run(cell, target.wheel, target.sha256, target.recipe)
    basis = cell_basis(target.recipe)
    proofs = tuple(judge([replace(proof, basis=basis[proof.check]) for proof in run.proofs], target.recipe))
    store.save_proofs(_to_save(store, target.sha256, proofs))
    failed = sum(proof.verdict is Verdict.FAILED for proof in proofs)
    progress.finish(name, f"{failed} failed" if failed else "tested")
    for sentence in unused_accepts(target.recipe, proofs):
        print_warning(f"{target.recipe.name} in {cell}: {sentence}")
    return SmokeResult(target.wheel.name, cell, proofs, run.answer)


def pack_gate(matrix: Path, select: Selection, target: Path) -> Path:
    """Write the op gate and the cases of one extension to one file, for a machine that has only torch and the wheel.

    Raises UsageError unless exactly one extension is selected, or when the file cannot be written.
    """
    recipes = selected_recipes(load_recipes(load_matrix(matrix)), select)
    if len(recipes) != 1 or not select.extensions:
        raise UsageError(
            "name exactly one extension with --ext NAME: the file holds the cases of one extension", where="--pack"
        )
    try:
        return pack_file(target, spec_of(recipes[0], 0), recipes[0].cases)
    except OSError as error:
        raise UsageError(f"cannot write this file: {error.strerror}", where=str(target)) from None


def cell_environments(
    executor: str, matrix: Matrix, store: Store, *, python_downloads: bool, pull: bool
) -> CellEnvironments:
    """Where the cells run: in uv environments on this machine or in containers."""
    environments = Environments(store, matrix.torch_index, python_downloads=python_downloads)
    if executor == "local":
        return LocalEnvironments(environments)
    # The Docker SDK loads slowly, and a local run does not need it.
    from builder.proofs.cells.container import container_environments  # noqa: PLC0415

    return container_environments(matrix, store, environments, pull=pull)


def _to_save(store: Store, wheel: str, proofs: Sequence[Proof]) -> list[Proof]:
    """The proofs to save: "not run" never replaces an earlier "passed" or "failed" with the same basis."""
    ran = {(p.cell, p.check, p.basis) for p in store.proofs(wheel) if p.verdict is not Verdict.NOT_RUN}
    return [p for p in proofs if p.verdict is not Verdict.NOT_RUN or (p.cell, p.check, p.basis) not in ran]
