"""Prove finished wheels in every cell they claim, and keep the proofs in the store."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import Code, MissingToolError
from builder.formats import CELL_FORMAT, FACTS_FORMAT, LINKAGE_FORMAT, STATIC_FORMAT, VERIFY_FORMAT, digest_of
from builder.matrix.axes import AbiClass, Cell, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe
from builder.matrix.plan import Build
from builder.proof import OF_ANY_WHEEL, Check, Proof, Verdict
from builder.proofs.cells.driver import gpu_here
from builder.proofs.cells.op_gate import CELL_CHECKS, GATE_CHECKS, CellProofs, apply_accepts, gate_basis
from builder.proofs.inventory import Release, shelf_of
from builder.proofs.static.claim import WheelClaim
from builder.proofs.static.metadata import read_requirement
from builder.store import Store, StoredBuild, write_atomic
from builder.untrusted import MAX_OWN_JSON, JsonError, read_json
from builder.wheelfile.compatibility import is_compatible
from builder.wheelfile.facts import WheelFacts, facts_from_json, facts_to_json, read_facts
from builder.wheels.job import required_torch, torch_floor
from builder.wheels.toolchain.environments import Environments

if TYPE_CHECKING:
    from builder.proofs.cells.cell_run import Ahead, CellEnvironments, CellRun

#: Shows a cell in a line of its own: gives the log of the cell, and what shows its stages (`Progress.part`).
Part = Callable[[str], AbstractContextManager[tuple[Path, Callable[[str], None]]]]

#: Packages whose tables decide static checks: policies of manylinux platforms, and Python's stable ABI.
_TABLES = ("auditwheel", "abi3info")
#: The checks of the file of every wheel.
_FILE_CHECKS = (
    *(Check.PAYLOAD, Check.TAGS, Check.MODULES, Check.METADATA, Check.RECORD, Check.GRAFTED, Check.CONTENTS),
    *(Check.DEVICE_CODE, Check.LOADER),
)


@dataclass(frozen=True)
class Subject:
    """A wheel to prove."""

    path: Path
    facts: WheelFacts
    #: What is claimed about the wheel; it names the cells.
    claim: WheelClaim
    #: The file names of libraries that torch and its NVIDIA packages provide.
    provided: frozenset[str]
    #: Its cases are run.
    recipe: Recipe
    #: What `wheel_fault` says of the wheel; None: the wheel was not compared with its RECORD yet.
    fault: str | None = None
    #: Environments of its cells that exist; those that are left are removed by `prove`.
    ahead: Ahead | None = None


@dataclass
class WheelProver:
    """Proves finished wheels in the cells they claim, as far as this machine can, and keeps the proofs."""

    store: Store
    environments: Environments
    #: Has the runtime images for wheels that need a newer glibc than this machine's.
    images: Matrix | None = None
    #: Every check runs again, also those that are decided.
    again: bool = field(default=False, kw_only=True)
    _containers: CellEnvironments | None = field(default=None, init=False)
    _ahead: dict[Build, Ahead] = field(default_factory=dict, init=False)

    def subject(self, stored: StoredBuild, build: Build, recipe: Recipe) -> Subject:
        """The wheel of a build, to prove in the cells that the build serves."""
        facts = self._facts(stored)
        claim = WheelClaim(
            abi=build.abi,
            torch=_oldest_torch(build, recipe, facts),
            cuda=build.cuda,
            archs=build.archs,
            cuda_required=recipe.cuda == "required",
            local=build.local_version,
            requires=tuple(filter(None, (required_torch(build, recipe), *recipe.requires))),
            cells=build.serves,
            cuda_sources=stored.record.cuda,
            max_size=recipe.max_size,
        )
        return Subject(stored.wheel, facts, claim, stored.record.provided, recipe, ahead=self._ahead.pop(build, None))

    @contextmanager
    def environments_ahead(self, build: Build, recipe: Recipe, digest: str) -> Iterator[None]:
        """Make environments of the build's cells while the body makes the wheel; `subject` takes them.

        Not where the wheel may need containers.
        """
        from builder.proofs.cells.cell_run import Ahead, LocalEnvironments  # noqa: PLC0415 - as `_in_cells`

        if self.images is None:
            local, cases = LocalEnvironments(self.environments), recipe.cases is not None
            self._ahead[build] = Ahead(self.store, local, digest, build.serves, cases=cases)
        try:
            yield
        except BaseException:
            if ahead := self._ahead.pop(build, None):
                ahead.close()
            raise

    def prove(
        self,
        subject: Subject,
        *,
        log: Path,
        stage: Callable[[str], None],
        part: Part | None = None,
        others: Mapping[Cell, Sequence[Proof]] | None = None,
        keep_others: bool = False,
    ) -> list[Proof]:
        """Return every check of a wheel in the cells of its claim; checks that are decided already do not run again.

        With `part`, cells are proven side by side, each in a part; the proofs of a cell are in the store when it has
        ended. `others` are the proofs that other machines made in cells; no check of a cell runs here then. With
        `keep_others`, "not run" replaces nothing in the store that another recipe gave. Raises MachineFaultError,
        which says nothing about the wheel.
        """
        basis = _bases(subject)
        by_class = {AbiClass.CPYTHON: (), AbiClass.ABI3: (Check.ABI3,), AbiClass.STABLE: (Check.ABI3, Check.STABLE)}
        wanted: dict[Cell | None, Sequence[Check]] = {
            None: (*_FILE_CHECKS, *by_class[subject.claim.abi]),
            **dict.fromkeys(subject.claim.cells, CELL_CHECKS),
        }
        proofs = _keyed(one for one in self.store.proofs(subject.facts.sha256) if one.basis == basis(one))
        missing = {
            cell: {one for one in checks if self.again or not self._decided(proofs.get((cell, one)), subject.facts)}
            for cell, checks in wanted.items()
        }

        def save(made: Sequence[Proof]) -> tuple[list[Proof], list[Proof]]:
            based = apply_accepts([replace(one, basis=basis(one)) for one in made], subject.recipe)
            return based, self.store.save_proofs(based, keep_others=keep_others)

        with closing(subject.ahead) if subject.ahead else nullcontext():
            runs = self._in_cells(subject, {} if others is not None else missing, log, stage, part, save)
        if others or any(missing.values()):
            made = [proof for proofs in (others or {}).values() for proof in proofs]
            found, saved = save(self._all_proofs(subject, runs, made, missing))
            proofs = {**_keyed(found), **proofs, **_keyed(saved)}  # what the store did not take fills gaps only
        # The wanted ones in order, then checks of the file that the ABI class does not ask for, such as `abi3`.
        keys = [(cell, check) for cell, checks in wanted.items() for check in checks]
        keys += [key for key in proofs if key[0] is None and key not in keys]
        return apply_accepts([proofs[key] for key in keys if key in proofs], subject.recipe)

    def _decided(self, proof: Proof | None, facts: WheelFacts) -> bool:
        """Passed and failed are final, except failed by a time limit, which also depends on the load of the machine.

        A check that was not run is tried again once this machine can run it.
        """
        if proof is None:
            return False
        if proof.has_run:
            return not timed_out(proof)
        if proof.cell is not None:
            in_container = self.images and not is_compatible(facts.filename, proof.cell.python)
            if not in_container:
                try:
                    self.environments.interpreter(proof.cell.python)
                except MissingToolError:  # this machine has no such Python, and cannot download it now
                    return True
        return bool(proof.evidence.get("settled")) and not (proof.check.on_gpu and gpu_here())

    def _facts(self, stored: StoredBuild) -> WheelFacts:
        """The wheel's facts; each format of them is read once and kept in the store."""
        cached = stored.wheel.with_name(f"facts-{FACTS_FORMAT}.json")
        with suppress(OSError, JsonError):
            return read_json(cached, facts_from_json, limit=MAX_OWN_JSON)
        facts = read_facts(stored.wheel)
        write_atomic(cached, json.dumps(facts_to_json(facts)).encode())
        return facts

    def _in_cells(
        self,
        subject: Subject,
        missing: Mapping[Cell | None, Set[Check]],
        log: Path,
        stage: Callable[[str], None],
        part: Part | None,
        save: Callable[[Sequence[Proof]], object],
    ) -> dict[Cell, CellRun]:
        """Run the missing checks in each cell."""
        cells, sha256 = [cell for cell in subject.claim.cells if missing.get(cell)], subject.facts.sha256
        if not cells:
            return {}
        # Imported here because a wheel that is proven does not need them.
        from builder.proofs.cells.cell_run import CellRun, CellRunner  # noqa: PLC0415
        from builder.proofs.cells.turns import TURNS  # noqa: PLC0415

        def run(cell: Cell) -> CellRun:
            parted = nullcontext((log, stage)) if part is None or len(cells) == 1 else part(str(cell))
            with parted as (own_log, own_stage):
                try:
                    environments = self._cells_for(subject, cell)
                except MissingToolError as error:
                    made = CellRun(None, tuple(CellProofs(sha256, cell).not_run(str(error), CELL_CHECKS)))
                else:
                    runner = CellRunner(self.store, environments, own_log, own_stage, ahead=subject.ahead)
                    symbols_only = missing[cell] == {Check.LINKAGE}  # which needs no import and no gate
                    made = runner.run(cell, subject.path, sha256, subject.recipe, symbols_only=symbols_only)
                # The log of the part becomes a part of the log.
                proofs = tuple(replace(one, reason=one.reason.replace(str(own_log), str(log))) for one in made.proofs)
                save(proofs)
            return replace(made, proofs=proofs)

        if part and len(cells) > 1:
            stage("prove in its cells")
        # Each container may use all the memory.
        most = None if part and all(is_compatible(subject.facts.filename, cell.python) for cell in cells) else 1
        runs = TURNS.side_by_side([partial(run, cell) for cell in cells], self.store.root, most=most)
        return dict(zip(cells, runs, strict=True))

    def _all_proofs(
        self,
        subject: Subject,
        runs: Mapping[Cell, CellRun],
        others: Sequence[Proof],
        missing: Mapping[Cell | None, Set[Check]],
    ) -> list[Proof]:
        """Those of other machines, those of the runs in cells, and the static checks."""
        # Imported here because auditwheel and abi3info load slowly, and a wheel that is proven does not need them.
        from builder.proofs.file_checks import any_wheel_proofs, static_proofs  # noqa: PLC0415

        found = [*others, *(proof for run in runs.values() for proof in run.proofs)]
        symbols = {cell: run.symbols for cell, run in runs.items() if run.symbols is not None}
        for cell, table in symbols.items():
            # What a cell's torch defines is kept as an inventory, for `verify`; one that the store has stays.
            release = Release(cell.torch, cell.cuda, cell.platform.machine)
            if release not in (shelf := shelf_of(self.store)).releases:
                shelf.add(release, table)
        # Linkage needs a symbol table. In other cells an earlier proof holds, or the run has given its reason.
        found += static_proofs(subject.facts, subject.claim, subject.provided, symbols)
        if missing[None] & {*OF_ANY_WHEEL}:
            found += any_wheel_proofs(subject.path, subject.facts, subject.fault)
        return found

    def _cells_for(self, subject: Subject, cell: Cell) -> CellEnvironments:
        """Environments on this machine, or containers for a wheel that needs a newer glibc. Raises MissingToolError."""
        if is_compatible(subject.facts.filename, cell.python):
            from builder.proofs.cells.cell_run import LocalEnvironments  # noqa: PLC0415

            return LocalEnvironments(self.environments)
        if self.images is None:
            raise MissingToolError(
                "the wheel needs a newer glibc than this machine has; test the wheel in a container with"
                " `buildfarm smoke --executor docker`",
                Code.PLATFORM_UNSUPPORTED,
            )
        if self._containers is None:
            # Imported here because the Docker SDK loads slowly, and few wheels need it.
            from builder.proofs.cells.container import container_environments  # noqa: PLC0415

            self._containers = container_environments(self.images, self.store, self.environments)
        return self._containers


def _keyed(proofs: Iterable[Proof]) -> dict[tuple[Cell | None, Check], Proof]:
    return {(one.cell, one.check): one for one in proofs}


def _bases(subject: Subject) -> Callable[[Proof], str]:
    """The basis of today of each proof: digest of what its check depends on besides the wheel."""
    of_file = digest_of([STATIC_FORMAT, repr(subject.claim), sorted(subject.provided), *_table_versions()])[:16]
    by_check = defaultdict(lambda: of_file, {**dict.fromkeys(OF_ANY_WHEEL, any_wheel_basis()), Check.CURES: ""})
    of_cell = cell_basis(subject.recipe)
    return lambda proof: by_check[proof.check] if proof.cell is None else of_cell[proof.check]


def cell_basis(recipe: Recipe) -> dict[Check, str]:
    """For each check of a cell, digest of what its verdict depends on besides the wheel.

    The import depends on the recipe's modules, and the op gate also on its cases. What changes the basis of the import
    changes that of the op gate too: the gate needs an import that passed.
    """
    linkage = digest_of([LINKAGE_FORMAT, *_table_versions()])[:16]
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


def _oldest_torch(build: Build, recipe: Recipe, facts: WheelFacts) -> Torch:
    """The oldest torch that the wheel claims: that of the recipe, or a later one that METADATA requires."""
    floor = torch_floor(build, recipe)
    stated = [one for line in facts.requires_dist if (one := read_requirement(line)) and one.name == "torch"]
    for torch in Compat.load().torches if build.abi is AbiClass.STABLE else ():
        if floor <= torch <= build.torch and all(str(torch) in one.specifier for one in stated):
            return torch
    return floor
