"""Each cell its own proof: a clean environment of the cell, the wheel installed, linkage and import seen there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import MissingToolError
from builder.matrix.axes import Arch, Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe
from builder.matrix.plan import Build
from builder.proof import Check, Proof, Verdict
from builder.proofs.claim import Claim
from builder.proofs.driver import gpu_here
from builder.proofs.gating import GATE, gate_basis
from builder.store import Store, Stored, digest_of, write_whole
from builder.wheels.build import torch_floor, torch_window
from builder.wheels.environment import Environments
from builder.wheels.facts import WheelFacts, facts_from_json, facts_to_json, read_facts
from builder.wheels.official import fits
from builder.wheels.pythons import find_python

if TYPE_CHECKING:
    from builder.proofs.cell_environment import CellEnvironments
    from builder.proofs.providers import SymbolTable

#: Checks that need the environment of a cell.
IN_CELL = (Check.LINKAGE, Check.IMPORT, *GATE)


class CellProver:
    """Proves finished wheels in the cells they claim, as far as this machine has them, and keeps the proofs."""

    def __init__(self, store: Store, environments: Environments, images: Matrix | None = None) -> None:
        """`images` names the cells' runtime images: in those are seen the wheels that this machine does not take."""
        self._store = store
        self._environments = environments
        self._images = images
        self._containers: CellEnvironments | None = None

    def prove(
        self, stored: Stored, build: Build, recipe: Recipe, *, log: Path, stage: Callable[[str], None]
    ) -> list[Proof]:
        """Every check of this wheel for this build's cells; those decided earlier are read, not made again."""
        facts, claim = self._facts(stored), _claim(build, recipe)
        provided = frozenset(stored.record.get("provided", ()))
        about_file = digest_of([_checks_version(), repr(claim), sorted(provided)])[:16]
        about_cell = cell_basis(recipe)

        def basis(cell: Cell | None, check: Check) -> str:
            return about_file if cell is None else about_cell[check]

        known = {(p.cell, p.check): p for p in self._store.proofs(facts.sha256) if p.basis == basis(p.cell, p.check)}
        wanted: list[tuple[Cell | None, Check]] = [(None, check) for check in _file_checks(build)]
        wanted += [(cell, check) for cell in build.serves for check in IN_CELL]
        if not all(self._decided(known.get(key), facts) for key in wanted):
            made = self._prove(facts, claim, provided, stored, recipe, log, known, stage)
            # A check that was not run this time says nothing against one that was.
            made = [p for p in made if p.verdict is not Verdict.NOT_RUN or not self._ran(known.get((p.cell, p.check)))]
            made = [replace(proof, basis=basis(proof.cell, proof.check)) for proof in made]
            self._store.save_proofs(made)
            known |= {(p.cell, p.check): p for p in made}
        # What the file showed beyond what its class asks for counts too: an abi3 tag on a wheel that claims none.
        more = [key for key in known if key[0] is None and key not in wanted]
        return [known[key] for key in (*wanted, *more) if key in known]

    @staticmethod
    def _ran(proof: Proof | None) -> bool:
        return proof is not None and proof.verdict is not Verdict.NOT_RUN

    def _decided(self, proof: Proof | None, facts: WheelFacts) -> bool:
        """Passed and failed stand; a check that was not run is tried again once what it lacked is there."""
        if proof is None:
            return False
        if self._ran(proof):
            return True
        contained = self._images and proof.cell is not None and not fits(facts.filename, proof.cell.python)
        if proof.cell is not None and not contained and find_python(proof.cell.python) is None:
            return True
        return bool(proof.evidence.get("settled")) and not (proof.check.on_gpu and gpu_here())

    def _facts(self, stored: Stored) -> WheelFacts:
        """The wheel's facts, read once by each version of the reader and kept beside it."""
        kept = stored.wheel.with_name(f"facts-{_checks_version()[:12]}.json")
        with suppress(OSError, ValueError, KeyError, TypeError):
            return facts_from_json(json.loads(kept.read_bytes()))
        facts = read_facts(stored.wheel)
        write_whole(kept, json.dumps(facts_to_json(facts)).encode())
        return facts

    def _prove(
        self,
        facts: WheelFacts,
        claim: Claim,
        provided: frozenset[str],
        stored: Stored,
        recipe: Recipe,
        log: Path,
        known: dict[tuple[Cell | None, Check], Proof],
        stage: Callable[[str], None],
    ) -> list[Proof]:
        # auditwheel and abi3info take a while to load, and a wheel that is proven already has no use for them.
        from builder.proofs.local import LocalCells  # noqa: PLC0415
        from builder.proofs.static import static_proofs  # noqa: PLC0415
        from builder.proofs.visit import Visitor, unseen  # noqa: PLC0415

        local: CellEnvironments = LocalCells(self._environments)
        symbols: dict[Cell, SymbolTable] = {}
        made: list[Proof] = []
        for cell in claim.cells:
            if all(self._decided(known.get((cell, check)), facts) for check in IN_CELL):
                continue
            try:
                cells = local if fits(facts.filename, cell.python) else self._in_containers()
                seen = Visitor(self._store, cells, log, stage).visit(cell, stored.wheel, facts.sha256, recipe)
            except MissingToolError as error:
                seen = unseen(str(error), facts.sha256, cell)
            made += seen.proofs
            if seen.symbols is not None:
                symbols[cell] = seen.symbols
        static = static_proofs(facts, claim, provided, symbols, gpus=_gpus(claim.archs))
        # Of a cell not seen just now it knows nothing: an earlier proof stands, or its own reason has been given.
        made += [proof for proof in static if proof.cell is None or proof.cell in symbols]
        return made

    def _in_containers(self) -> CellEnvironments:
        """Containers of the cells' runtime images; raises MissingToolError where there are none to be had."""
        if self._images is None:
            raise MissingToolError(
                "the wheel is for a newer C library than this machine's;"
                " `buildfarm smoke --executor docker` runs it in a container"
            )
        if self._containers is None:
            # The docker SDK takes a while to load, and few wheels need it.
            from builder.proofs.elsewhere import container_cells  # noqa: PLC0415

            self._containers = container_cells(self._images, self._store, self._environments)
        return self._containers


def cell_basis(recipe: Recipe) -> dict[Check, str]:
    """What each check made in a cell rests on beside the wheel: the checks' code, the recipe's words, its cases."""
    imports = digest_of([_checks_version(), recipe.imports])[:16]
    ops = digest_of([_checks_version(), *gate_basis(recipe)])[:16]
    return {check: ops if check in GATE else imports for check in IN_CELL}


def _claim(build: Build, recipe: Recipe) -> Claim:
    """What the farm says of the wheel of a build."""
    return Claim(
        abi=build.abi,
        torch=torch_floor(build),
        cuda=build.cuda,
        archs=build.archs,
        cuda_required=recipe.cuda == "required",
        local=build.local_version,
        requires=(torch_window(build), *recipe.requires),
        cells=build.serves,
    )


@cache
def _checks_version() -> str:
    """The code that reads and judges wheels, by content: a mended check asks its question anew."""
    here = Path(__file__).parent
    readers = [
        here.parent / "wheels" / f"{name}.py" for name in ("device_code", "elf", "environment", "facts", "official")
    ]
    files = sorted([*here.glob("*.py"), *here.glob("*.yaml"), *readers])
    return digest_of([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])


def _file_checks(build: Build) -> Sequence[Check]:
    """What the file alone decides, by what the binary says it is tied to."""
    checks = [Check.PAYLOAD, Check.TAGS, Check.METADATA, Check.GRAFTED, Check.DEVICE_CODE]
    if build.abi.value != "cpython":
        checks.append(Check.ABI3)
    if build.abi.value == "stable":
        checks.append(Check.STABLE)
    return checks


def _gpus(archs: Sequence[Arch]) -> dict[str, tuple[str, ...]]:
    """Products by architecture, so that a missing one can be named as what people own."""
    return {f"{arch.major}.{arch.minor}": Compat.load().gpu_names(arch) for arch in archs}
