"""The story of `smoke`: any wheel, or what is installed here; every op executed in each cell; proofs kept."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.errors import MissingToolError, NothingSelectedError, UsageError
from builder.farm import open_store
from builder.gate.outcome import FAILED, Answer
from builder.gate.pack import pack_file
from builder.log import say
from builder.matrix.axes import Cell, Cuda, Python, Torch
from builder.matrix.config import Matrix, Select, load_matrix, load_recipes
from builder.proof import Proof, Verdict
from builder.proofs.cell_environment import CellEnvironments
from builder.proofs.cells import cell_basis
from builder.proofs.gating import gate_proofs, run_gate, spec_of
from builder.proofs.local import LocalCells
from builder.proofs.visit import Visitor
from builder.result import Smoked
from builder.store import Store
from builder.subjects import chosen, find_subjects
from builder.wheels.environment import Environments, torch_cuda
from builder.wheels.resources import measure


@dataclass(frozen=True)
class SmokeOptions:
    """What a person asked of one run.

    Attributes:
        targets: wheels by path, by URL, or as NAME==VERSION; none: the wheels of `dist`, and official ones of recipes.
        index: URL of a package index that is asked before the default one, or empty.
        executor: `local`, an environment of uv for each cell, or `docker`, a container of each cell's runtime image.

    """

    matrix: Path
    targets: tuple[str, ...] = ()
    select: Select = field(default_factory=Select)
    index: str = ""
    dist: Path = Path("dist")
    store: Path | None = None
    executor: str = "local"


def run_smoke(options: SmokeOptions) -> Iterator[Smoked]:
    """Prove each wheel in each of its cells, one after the other; proofs go to the store as they are made.

    Raises UsageError for a wheel or a selection that makes no sense, NothingSelectedError when no cell is left,
    MissingToolError when there is no container engine and one was asked for.
    """
    matrix = load_matrix(options.matrix)
    recipes = load_recipes(matrix)
    store = open_store(options.store)
    store.clear_abandoned()
    cells = _cells(options, matrix, store)
    subjects = find_subjects(
        options.targets, matrix, recipes, options.select, options.dist, store.root / "sources", options.index
    )
    for subject in subjects:
        basis = cell_basis(subject.recipe)
        for cell in subject.cells:
            say(f"{subject.wheel.name} in {cell}")
            visitor = Visitor(store, cells, store.log(f"smoke-{subject.wheel.name}-{cell}"))
            seen = visitor.visit(cell, subject.wheel, subject.sha256, subject.recipe)
            proofs = tuple(replace(proof, basis=basis[proof.check]) for proof in seen.proofs)
            store.save_proofs(_news(store, subject.sha256, proofs))
            yield Smoked(subject.wheel.name, cell, proofs, seen.answer)


def _cells(options: SmokeOptions, matrix: Matrix, store: Store) -> CellEnvironments:
    """The way asked for to have environments of cells, once it is known to work here."""
    environments = Environments(store, matrix.torch_index)
    if options.executor == "local":
        return LocalCells(environments)
    # The docker SDK takes a while to load, and a local run has no use for it.
    from builder.proofs.elsewhere import container_cells  # noqa: PLC0415

    return container_cells(matrix, store, environments)


def _news(store: Store, wheel: str, proofs: Sequence[Proof]) -> list[Proof]:
    """What is worth keeping: a check that was not run this time says nothing against one that was."""
    ran = {(p.cell, p.check, p.basis) for p in store.proofs(wheel) if p.verdict is not Verdict.NOT_RUN}
    return [p for p in proofs if p.verdict is not Verdict.NOT_RUN or (p.cell, p.check, p.basis) not in ran]


def smoke_here(matrix: Path, select: Select) -> list[Smoked]:
    """Run the gate on what is installed in the current environment: no network, no Docker, no uv, no store.

    The current environment is $VIRTUAL_ENV, else $CONDA_PREFIX, else the one this command runs in.
    Raises UsageError when an extension that was asked for is unknown, NothingSelectedError when none is installed,
    MissingToolError when there is no torch that imports.
    """
    prefix, interpreter, site = _current()
    recipes = chosen(load_recipes(load_matrix(matrix)), select)
    installed = {recipe.name: version for recipe in recipes if (version := _installed(site, recipe.name))}
    for name in select.extensions:
        if name not in installed:
            raise NothingSelectedError(f"{name} is not installed in this environment", where=str(prefix))
    if not installed:
        raise NothingSelectedError("no extension of the matrix is installed in this environment", where=str(prefix))
    # Asked before the gate runs for a minute; an environment without torch says so itself.
    if (site / "torch" / "version.py").is_file() and not torch_cuda(site):
        raise _cpu_build("the torch of this environment")
    say(f"environment: {prefix}")
    smoked = []
    for recipe in recipes:
        if recipe.name not in installed:
            continue
        with tempfile.TemporaryDirectory(prefix="buildfarm-smoke-") as scratch:
            log = Path(scratch, "log")
            job = f"smoke-here-{os.getpid()}"
            answer = run_gate(interpreter, recipe, Path(scratch, "gate"), jobs=measure().cores, log=log, job=job)
            if isinstance(answer, str):
                talk = log.read_text(errors="replace").strip().splitlines()
                raise MissingToolError(f"{recipe.name}: {answer}", hints=talk[-3:])
        cell = _cell_of(answer)
        smoked.append(
            Smoked(f"{recipe.name} {installed[recipe.name]}", cell, tuple(gate_proofs(answer, "", cell)), answer)
        )
    return smoked


def pack_gate(matrix: Path, select: Select, target: Path) -> Path:
    """Write the gate and one extension's cases into one file that a machine with torch alone runs.

    Raises UsageError unless exactly one extension is selected, or when the file cannot be written.
    """
    recipes = chosen(load_recipes(load_matrix(matrix)), select)
    if len(recipes) != 1 or not select.extensions:
        raise UsageError("one file carries the cases of one extension; name it with --ext", where="--pack")
    try:
        return pack_file(target, spec_of(recipes[0], 0), recipes[0].cases)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(target)) from None


def _current() -> tuple[Path, Path, Path]:
    """The current environment: its folder, its python, where its distributions are."""
    chosen_prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if not chosen_prefix:  # Debian's own Python, say, keeps its distributions in a folder of another name
        return Path(sys.prefix), Path(sys.executable), Path(sysconfig.get_path("purelib"))
    prefix = Path(chosen_prefix)
    for site in sorted((prefix / "lib").glob("python3*/site-packages")):
        return prefix, prefix / "bin" / "python", site
    raise UsageError("there is no Python environment here", where=str(prefix))


def _installed(site: Path, name: str) -> str:
    """The version of an installed distribution, or empty."""
    found = [d.version for d in distributions(path=[str(site)]) if canonicalize_name(d.name) == canonicalize_name(name)]
    return found[0] if found else ""


def _cell_of(answer: Answer) -> Cell:
    """The cell an answer came from, by what its torch and its Python say of themselves."""
    where = answer.where
    if "torch" not in where:
        said = next((one.reason for one in answer.outcomes if one.verdict == FAILED), "the gate did not get that far")
        raise MissingToolError(f"torch does not import in this environment: {said}", where="--here")
    release = str(where["torch"]).partition("+")[0]
    python = ".".join(str(where["python"]).split(".")[:2])
    cuda = str(where.get("cuda") or "")
    if not cuda:
        raise _cpu_build(f"the torch {where['torch']} of this environment")
    return Cell(Torch.parse(release), Cuda.parse(cuda), Python.parse(python))


def _cpu_build(what: str) -> UsageError:
    return UsageError(
        f"{what} is a CPU build, which is no cell",
        where="--here",
        hints=("`buildfarm smoke --ext NAME --pack gate.pyz`, then `python gate.pyz` there, takes any torch",),
    )
