"""Prove finished wheels in every cell they claim, and keep the proofs in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from builder.check import OF_ANY_WHEEL
from builder.errors import Code, MissingToolError
from builder.formats import CELL_FORMAT, FACTS_FORMAT, LINKAGE_FORMAT, STATIC_FORMAT, VERIFY_FORMAT
from builder.hashing import digest_of
from builder.matrix.axes import AbiClass, Cell, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe
from builder.matrix.plan import Build
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.acceptance import judge
from builder.proofs.cells.driver import gpu_here
from builder.proofs.cells.op_gate import GATE_CHECKS, gate_basis
from builder.proofs.inventory import Inventory, Release, shelf_of
from builder.proofs.static.claim import WheelClaim
from builder.proofs.static.metadata import read_requirement
from builder.records import CudaSources
from builder.store import Store, StoredBuild, write_atomic
from builder.untrusted import MAX_OWN_JSON, JsonError, read_json
from builder.wheelfile.compatibility import is_compatible
from builder.wheelfile.facts import WheelFacts, facts_from_json, facts_to_json, read_facts
from builder.wheels.job import required_torch, torch_floor
from builder.wheels.toolchain.environments import Environments

if TYPE_CHECKING:
    from builder.proofs.cells.cell_environment import CellEnvironments
    from builder.proofs.cells.cell_run import CellRun
    from builder.proofs.static.symbol_table import SymbolTable

#: Checks that need the environment of a cell.
CELL_CHECKS = (Check.LINKAGE, Check.IMPORT, *GATE_CHECKS)

#: Packages whose tables decide static checks: policies of manylinux platforms, and Python's stable ABI.
_TABLES = ("auditwheel", "abi3info")

#: Proofs by cell (None for a check of the file alone) and check.
_Proofs = dict[tuple[Cell | None, Check], Proof]


@dataclass(frozen=True)
class Subject:
    """A wheel to prove."""

    #: The file.
    path: Path
    #: What the file says.
    facts: WheelFacts
    #: What is claimed about the wheel; it names the cells.
    claim: WheelClaim
    #: The file names of libraries that torch and its NVIDIA packages provide.
    provided: frozenset[str]
    #: Its cases are run.
    recipe: Recipe
    #: What `wheel_fault` says of the wheel; None: the wheel was not compared with its RECORD yet.
    fault: str | None = None


class WheelProver:
    """Proves finished wheels in the cells they claim, as far as this machine can, and keeps the proofs."""

    def __init__(
        self,
        store: Store,
        environments: Environments,
        images: Matrix | None = None,
        *,
        pull: bool = True,
        again: bool = False,
    ) -> None:
        """`images` names the runtime images for wheels that need a newer glibc than this machine's.

        `pull` is whether base images of runtime images may be pulled, and `again` whether every check runs again, also
        those that are decided.
        """
        self.again = again
        self._store = store
        self._environments = environments
        self._images = images
        self._pull = pull
        self._containers: CellEnvironments | None = None

    def prove(
        self, stored: StoredBuild, build: Build, recipe: Recipe, *, log: Path, stage: Callable[[str], None]
    ) -> list[Proof]:
        """Prove the wheel of a build in the cells that it serves, as `prove_wheel` does."""
        return self.prove_wheel(self.subject(stored, build, recipe), log=log, stage=stage)

    def subject(self, stored: StoredBuild, build: Build, recipe: Recipe) -> Subject:
        """The wheel of a build, to prove in the cells that the build serves."""
        facts = self._facts(stored)
        claim = _claim(build, recipe, facts, stored.record.cuda)
        return Subject(stored.wheel, facts, claim, stored.record.provided, recipe)

    def prove_wheel(
        self,
        subject: Subject,
        *,
        log: Path,
        stage: Callable[[str], None],
        made: Mapping[Cell, Sequence[Proof]] | None = None,
        keep_others: bool = False,
    ) -> list[Proof]:
        """Return every check of a wheel in the cells of its claim; checks that are decided already do not run again.

        `made` are the checks that other machines made in cells; no check of a cell runs here then. With `keep_others`,
        "not run" replaces nothing in the store that another recipe gave. Raises DiskFullError and KilledError: they say
        nothing about the wheel.
        """
        recipe = subject.recipe
        sha256 = subject.facts.sha256
        file_inputs = [STATIC_FORMAT, repr(subject.claim), sorted(subject.provided), *_table_versions()]
        about_file, about_cell = digest_of(file_inputs)[:16], cell_basis(recipe)
        about_any = dict.fromkeys(OF_ANY_WHEEL, any_wheel_basis())

        def basis(cell: Cell | None, check: Check) -> str:
            return about_any.get(check, about_file) if cell is None else about_cell[check]

        known = {(p.cell, p.check): p for p in self._store.proofs(sha256) if p.basis == basis(p.cell, p.check)}
        wanted: list[tuple[Cell | None, Check]] = [(None, check) for check in _file_checks(subject.claim.abi)]
        wanted += [(cell, check) for cell in subject.claim.cells for check in CELL_CHECKS]
        if made or self.again or not all(self._decided(known.get(key), subject.facts) for key in wanted):
            found = self._prove(subject, {} if self.again else known, log, stage, made)
            found = judge([replace(proof, basis=basis(proof.cell, proof.check)) for proof in found], recipe)
            saved = self._store.save_proofs(found, keep_others=keep_others)
            known = {(p.cell, p.check): p for p in found if keep_others} | known | {(p.cell, p.check): p for p in saved}
        # Also report file checks that the ABI class does not require, such as an abi3 tag on a wheel of class cpython.
        more = [key for key in known if key[0] is None and key not in wanted]
        return judge([known[key] for key in (*wanted, *more) if key in known], recipe)

    def _decided(self, proof: Proof | None, facts: WheelFacts) -> bool:
        """Passed and failed are final, except failed by a time limit, which also depends on the load of the machine.

        A check that was not run is tried again once this machine can run it.
        """
        if proof is None:
            return False
        if proof.has_run:
            return not timed_out(proof)
        if proof.cell is not None:
            in_container = self._images and not is_compatible(facts.filename, proof.cell.python)
            if not in_container and not self._has_python(proof.cell):
                return True
        return bool(proof.evidence.get("settled")) and not (proof.check.on_gpu and gpu_here())

    def _has_python(self, cell: Cell) -> bool:
        """Whether this machine has the cell's Python, or downloads it now."""
        try:
            self._environments.interpreter(cell.python)
        except MissingToolError:
            return False
        return True

    def _facts(self, stored: StoredBuild) -> WheelFacts:
        """The wheel's facts; each format of them is read once and kept in the store."""
        cached = stored.wheel.with_name(f"facts-{FACTS_FORMAT}.json")
        with suppress(OSError, JsonError):
            return read_json(cached, facts_from_json, limit=MAX_OWN_JSON)
        facts = read_facts(stored.wheel)
        write_atomic(cached, json.dumps(facts_to_json(facts)).encode())
        return facts

    def _prove(
        self,
        subject: Subject,
        known: _Proofs,
        log: Path,
        stage: Callable[[str], None],
        others: Mapping[Cell, Sequence[Proof]] | None,
    ) -> list[Proof]:
        """Run the checks of every cell that is not decided, or take those of other machines; then the static checks."""
        # Imported here because auditwheel and abi3info load slowly, and a wheel that is proven does not need them.
        from builder.proofs.any_wheel import any_wheel_proofs  # noqa: PLC0415
        from builder.proofs.static.file_checks import static_proofs  # noqa: PLC0415

        symbols: dict[Cell, SymbolTable] = {}
        made: list[Proof] = [proof for proofs in (others or {}).values() for proof in proofs]
        for cell in subject.claim.cells if others is None else ():
            missing = {check for check in CELL_CHECKS if not self._decided(known.get((cell, check)), subject.facts)}
            if not missing:
                continue
            run = self._run(subject, cell, missing, log, stage)
            made += run.proofs
            if run.symbols is not None:
                symbols[cell] = run.symbols
                self._keep(cell, run.symbols)
        static = static_proofs(subject.facts, subject.claim, subject.provided, symbols)
        # Linkage needs a symbol table. In other cells an earlier proof holds, or the run has given its reason.
        made += [proof for proof in static if proof.cell is None or proof.cell in symbols]
        if not all(self._decided(known.get((None, check)), subject.facts) for check in OF_ANY_WHEEL):
            made += any_wheel_proofs(subject.path, subject.facts, subject.fault)
        return made

    def _keep(self, cell: Cell, symbols: SymbolTable) -> None:
        """Keep what a cell's torch defines as an inventory, for `verify`; one that the store has stays."""
        shelf = shelf_of(self._store)
        release = Release(cell.torch, cell.cuda, cell.platform.removeprefix("linux_"))
        if release not in shelf.releases:
            shelf.add(Inventory(release, symbols))

    def _run(
        self, subject: Subject, cell: Cell, missing: set[Check], log: Path, stage: Callable[[str], None]
    ) -> CellRun:
        """Run the missing checks in one cell; linkage alone needs no import and no gate."""
        from builder.proofs.cells.cell_environment import LocalEnvironments  # noqa: PLC0415
        from builder.proofs.cells.cell_run import CellRunner, not_run_in_cell  # noqa: PLC0415

        sha256 = subject.facts.sha256
        cells: CellEnvironments
        try:
            if is_compatible(subject.facts.filename, cell.python):
                cells = LocalEnvironments(self._environments)
            else:
                cells = self._in_containers()
        except MissingToolError as error:
            return not_run_in_cell(str(error), sha256, cell)
        runner = CellRunner(self._store, cells, log, stage)
        if missing == {Check.LINKAGE}:
            return runner.read_symbols(cell, sha256)
        return runner.run(cell, subject.path, sha256, subject.recipe)

    def _in_containers(self) -> CellEnvironments:
        """Containers of the cells' runtime images; raises MissingToolError when there is no container engine."""
        if self._images is None:
            raise MissingToolError(
                "the wheel needs a newer glibc than this machine has; test the wheel in a container with"
                " `buildfarm smoke --executor docker`",
                Code.GLIBC_TOO_OLD,
            )
        if self._containers is None:
            # Imported here because the Docker SDK loads slowly, and few wheels need it.
            from builder.proofs.cells.container import container_environments  # noqa: PLC0415

            self._containers = container_environments(self._images, self._store, self._environments, pull=self._pull)
        return self._containers


def cell_basis(recipe: Recipe) -> dict[Check, str]:
    """For each check of a cell, digest of what its verdict depends on besides the wheel.

    Linkage depends on `variants`, the import on the recipe's modules, and the op gate also on its cases. What changes
    the basis of the import changes that of the op gate too: the gate needs an import that passed.
    """
    linkage = digest_of([LINKAGE_FORMAT, repr(recipe.variants), *_table_versions()])[:16]
    imports = digest_of([CELL_FORMAT, recipe.modules])[:16]
    ops = digest_of(gate_basis(recipe))[:16]
    return {Check.LINKAGE: linkage, Check.IMPORT: imports, **dict.fromkeys(GATE_CHECKS, ops)}


def any_wheel_basis() -> str:
    """Digest of what the checks of OF_ANY_WHEEL depend on besides the file."""
    return digest_of([STATIC_FORMAT, VERIFY_FORMAT])[:16]


def _table_versions() -> list[str]:
    return [f"{name} {version(name)}" for name in _TABLES]


def timed_out(proof: Proof) -> bool:
    """Whether a time limit decided that a check failed; the gate and the import check write it into the evidence."""
    if proof.verdict is not Verdict.FAILED:
        return False
    parts = [proof.evidence, *(outcome.get("evidence", {}) for outcome in proof.evidence.get("outcomes", ()))]
    return any(part.get("limit") == "time" for part in parts)


def _claim(build: Build, recipe: Recipe, facts: WheelFacts, cuda_sources: CudaSources) -> WheelClaim:
    """What buildfarm claims about the wheel of a build."""
    return WheelClaim(
        abi=build.abi,
        torch=_oldest_torch(build, recipe, facts),
        cuda=build.cuda,
        archs=build.archs,
        cuda_required=recipe.cuda == "required",
        local=build.local_version,
        requires=tuple(filter(None, (required_torch(build, recipe), *recipe.requires))),
        cells=build.serves,
        cuda_sources=cuda_sources,
        max_size=recipe.max_size,
        variants=recipe.variants,
    )


def _oldest_torch(build: Build, recipe: Recipe, facts: WheelFacts) -> Torch:
    """The oldest torch that the wheel claims: that of the recipe, or a later one that METADATA requires."""
    floor = torch_floor(build, recipe)
    stated = [one for line in facts.requires_dist if (one := read_requirement(line)) and one.name == "torch"]
    for torch in Compat.load().torches if build.abi is AbiClass.STABLE else ():
        if floor <= torch <= build.torch and all(str(torch) in one.specifier for one in stated):
            return torch
    return floor


def _file_checks(abi: AbiClass) -> Sequence[Check]:
    """The checks of the file that an ABI class requires."""
    checks = [
        Check.PAYLOAD,
        Check.TAGS,
        Check.MODULES,
        Check.METADATA,
        Check.RECORD,
        Check.GRAFTED,
        Check.CONTENTS,
        Check.DEVICE_CODE,
        Check.LOADER,
    ]
    if abi is not AbiClass.CPYTHON:
        checks.append(Check.ABI3)
    if abi is AbiClass.STABLE:
        checks.append(Check.STABLE)
    return checks
