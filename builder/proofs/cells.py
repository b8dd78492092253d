"""Each cell its own proof: a clean environment of the cell, the wheel installed, linkage and import seen there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import BuildError, MissingToolError
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.proofs.claim import Claim, judge, not_run
from builder.proofs.importing import try_import
from builder.proofs.proof import Check, Proof, Verdict
from builder.store import Store, Stored, job_name, write_whole
from builder.wheels.build import torch_floor, torch_window
from builder.wheels.environment import (
    DiskFullError,
    Environment,
    Environments,
    UnsatisfiableError,
    cell_requirements,
)
from builder.wheels.facts import WheelFacts, facts_from_json, facts_to_json, read_facts
from builder.wheels.pythons import find_python

if TYPE_CHECKING:
    from builder.proofs.symbols import SymbolTable

#: Checks that need the environment of a cell.
IN_CELL = (Check.LINKAGE, Check.IMPORT)


@dataclass(frozen=True)
class _Seen:
    """What one cell's environment showed."""

    symbols: SymbolTable | None
    proofs: tuple[Proof, ...]


class CellProver:
    """Proves finished wheels in the cells they claim, as far as this machine has them, and keeps the proofs."""

    def __init__(self, store: Store, environments: Environments) -> None:
        self._store = store
        self._environments = environments

    def prove(
        self, stored: Stored, build: Build, recipe: Recipe, *, log: Path, stage: Callable[[str], None]
    ) -> list[Proof]:
        """Every check of this wheel for this build's cells; those decided earlier are read, not made again."""
        facts = self._facts(stored)
        known = {(p.cell, p.check): p for p in self._store.proofs(facts.sha256)}
        wanted: list[tuple[Cell | None, Check]] = [(None, check) for check in _file_checks(build)]
        wanted += [(cell, check) for cell in build.serves for check in (*IN_CELL, Check.GPU)]
        if not all(self._decided(known.get(key)) for key in wanted):
            made = self._prove(facts, stored, build, recipe, log, known, stage)
            # A check that was not run this time says nothing against one that was.
            made = [p for p in made if p.verdict is not Verdict.NOT_RUN or not self._ran(known.get((p.cell, p.check)))]
            self._store.save_proofs(made)
            known |= {(p.cell, p.check): p for p in made}
        return [known[key] for key in wanted if key in known]

    @staticmethod
    def _ran(proof: Proof | None) -> bool:
        return proof is not None and proof.verdict is not Verdict.NOT_RUN

    def _decided(self, proof: Proof | None) -> bool:
        """Passed and failed stand; a check that was not run is tried again once what it lacked is there."""
        if proof is None:
            return False
        if self._ran(proof) or proof.check is Check.GPU:
            return True
        return proof.cell is not None and find_python(proof.cell.python) is None

    def _facts(self, stored: Stored) -> WheelFacts:
        """The wheel's facts, read once and kept beside it."""
        kept = stored.wheel.with_name("facts.json")
        if kept.exists():
            return facts_from_json(json.loads(kept.read_bytes()))
        facts = read_facts(stored.wheel)
        write_whole(kept, json.dumps(facts_to_json(facts)).encode())
        return facts

    def _prove(
        self,
        facts: WheelFacts,
        stored: Stored,
        build: Build,
        recipe: Recipe,
        log: Path,
        known: dict[tuple[Cell | None, Check], Proof],
        stage: Callable[[str], None],
    ) -> list[Proof]:
        # auditwheel and abi3info take a while to load, and a wheel that is proven already has no use for them.
        from builder.proofs.static import static_proofs  # noqa: PLC0415

        claim = Claim(
            abi=build.abi,
            torch=torch_floor(build),
            cuda=build.cuda,
            archs=build.archs,
            cuda_required=recipe.cuda == "required",
            local=build.local_version,
            requires=(torch_window(build), *recipe.requires),
            cells=build.serves,
        )
        symbols: dict[Cell, SymbolTable] = {}
        made: list[Proof] = []
        for cell in build.serves:
            if all(self._decided(known.get((cell, check))) for check in IN_CELL):
                continue
            seen = self._see(cell, facts, stored, recipe, log, stage)
            made += seen.proofs
            if seen.symbols is not None:
                symbols[cell] = seen.symbols
        provided = frozenset(stored.record.get("provided", ()))
        static = static_proofs(facts, claim, provided, symbols, gpus=_gpus(build))
        # Of a cell not seen just now it knows nothing: an earlier proof stands, or its own reason has been given.
        made += [proof for proof in static if proof.cell is None or proof.cell in symbols]
        made += [not_run(facts, Check.GPU, _gpu_reason(), cell=cell) for cell in build.serves]
        return made

    def _see(
        self,
        cell: Cell,
        facts: WheelFacts,
        stored: Stored,
        recipe: Recipe,
        log: Path,
        stage: Callable[[str], None],
    ) -> _Seen:
        """Install the wheel beside the cell's own torch, read that torch's symbols, import in a fresh process."""
        from builder.proofs.symbols import collect_symbols  # noqa: PLC0415 - see `_prove`

        interpreter = find_python(cell.python)
        if interpreter is None:
            reason = f"no Python {cell.python} on this machine"
            return _Seen(None, tuple(not_run(facts, check, reason, cell=cell) for check in IN_CELL))
        stage(f"prove in {cell}")
        default = Compat.load().is_default_variant(cell.torch, cell.cuda)
        own = cell_requirements(cell.torch, cell.cuda, default_variant=default)
        job = f"prove-{job_name(facts.sha256)}-{cell}"
        with self._store.work(job) as folder:
            environment = Environment(folder / "env", cell.python, ())
            index = self._environments.index_arguments(cell.cuda, default_variant=default)
            mark = self._store.mark(job)
            install = partial(self._environments.install, environment.folder, index=index, log=log, job=mark)
            try:
                # The cell first, the wheel after: what fails then is the wheel's own fault.
                self._environments.create(environment.folder, interpreter, own, index=index, log=log, job=mark)
                faults = _refusal(lambda: install([*own, str(stored.wheel)]))
            except MissingToolError as error:
                return _Seen(None, tuple(not_run(facts, check, str(error), cell=cell) for check in IN_CELL))
            symbols = collect_symbols(environment.site_packages)
            if faults:
                return _Seen(symbols, (judge(facts, Check.IMPORT, faults, cell=cell),))
            outcome = try_import(environment.interpreter, recipe.imports)
            faults = [outcome.reason] if outcome.verdict is Verdict.FAILED else []
            proof = judge(facts, Check.IMPORT, faults, cell=cell, good=outcome.reason, evidence=outcome.evidence)
            return _Seen(symbols, (proof,))


def _refusal(install: Callable[[], None]) -> list[str]:
    """Why the wheel does not install where its cell stands ready; what else is in the way is raised."""
    try:
        install()
    except DiskFullError:
        raise
    except (UnsatisfiableError, BuildError) as error:
        return [f"it does not install: {error.sentence}"]
    return []


def _file_checks(build: Build) -> Sequence[Check]:
    """What the file alone decides, by what the binary says it is tied to."""
    checks = [Check.PAYLOAD, Check.TAGS, Check.METADATA, Check.GRAFTED, Check.DEVICE_CODE]
    if build.abi.value != "cpython":
        checks.append(Check.ABI3)
    if build.abi.value == "stable":
        checks.append(Check.STABLE)
    return checks


def _gpus(build: Build) -> dict[str, tuple[str, ...]]:
    """Products by architecture, so that a missing one can be named as what people own."""
    return {f"{arch.major}.{arch.minor}": Compat.load().gpu_names(arch) for arch in build.archs}


def _gpu_reason() -> str:
    if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists():
        return "this release runs nothing on the GPU yet"
    return "no GPU on this machine"
