"""Each cell its own proof: a clean environment of the cell, the wheel installed, linkage and import seen there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import BuildError, MissingToolError
from builder.matrix.axes import Arch, Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.proofs.claim import Claim, judge, not_run
from builder.proofs.importing import try_import
from builder.proofs.proof import Check, Proof, Verdict
from builder.store import Store, Stored, digest_of, job_name, write_whole
from builder.wheels.build import torch_floor, torch_window
from builder.wheels.environment import (
    DiskFullError,
    Environment,
    Environments,
    KilledError,
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
        facts, claim = self._facts(stored), _claim(build, recipe)
        provided = frozenset(stored.record.get("provided", ()))
        about_file = digest_of([_checks_version(), repr(claim), sorted(provided)])[:16]
        about_cell = digest_of([_checks_version(), recipe.imports])[:16]

        def basis(cell: Cell | None) -> str:
            return about_cell if cell else about_file

        known = {(p.cell, p.check): p for p in self._store.proofs(facts.sha256) if p.basis == basis(p.cell)}
        wanted: list[tuple[Cell | None, Check]] = [(None, check) for check in _file_checks(build)]
        wanted += [(cell, check) for cell in build.serves for check in (*IN_CELL, Check.GPU)]
        if not all(self._decided(known.get(key)) for key in wanted):
            made = self._prove(facts, claim, provided, stored, recipe, log, known, stage)
            # A check that was not run this time says nothing against one that was.
            made = [p for p in made if p.verdict is not Verdict.NOT_RUN or not self._ran(known.get((p.cell, p.check)))]
            made = [replace(proof, basis=basis(proof.cell)) for proof in made]
            self._store.save_proofs(made)
            known |= {(p.cell, p.check): p for p in made}
        # What the file showed beyond what its class asks for counts too: an abi3 tag on a wheel that claims none.
        more = [key for key in known if key[0] is None and key not in wanted]
        return [known[key] for key in (*wanted, *more) if key in known]

    @staticmethod
    def _ran(proof: Proof | None) -> bool:
        return proof is not None and proof.verdict is not Verdict.NOT_RUN

    def _decided(self, proof: Proof | None) -> bool:
        """Passed and failed stand; a check that was not run is tried again once what it lacked is there."""
        if proof is None:
            return False
        if proof.check is Check.GPU:
            return proof.reason == _gpu_reason()
        if self._ran(proof):
            return True
        return proof.cell is not None and find_python(proof.cell.python) is None

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
        from builder.proofs.static import static_proofs  # noqa: PLC0415

        symbols: dict[Cell, SymbolTable] = {}
        made: list[Proof] = []
        for cell in claim.cells:
            if all(self._decided(known.get((cell, check))) for check in IN_CELL):
                continue
            seen = self._see(cell, facts, stored, recipe, log, stage)
            made += seen.proofs
            if seen.symbols is not None:
                symbols[cell] = seen.symbols
        static = static_proofs(facts, claim, provided, symbols, gpus=_gpus(claim.archs))
        # Of a cell not seen just now it knows nothing: an earlier proof stands, or its own reason has been given.
        made += [proof for proof in static if proof.cell is None or proof.cell in symbols]
        made += [not_run(facts, Check.GPU, _gpu_reason(), cell=cell) for cell in claim.cells]
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
    readers = [here.parent / "wheels" / f"{name}.py" for name in ("device_code", "elf", "facts")]
    files = sorted([*here.glob("*.py"), *here.glob("*.yaml"), *readers])
    return digest_of([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])


def _refusal(install: Callable[[], None]) -> list[str]:
    """Why the wheel does not install where its cell stands ready; what else is in the way is raised."""
    try:
        install()
    except (DiskFullError, KilledError):
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


def _gpus(archs: Sequence[Arch]) -> dict[str, tuple[str, ...]]:
    """Products by architecture, so that a missing one can be named as what people own."""
    return {f"{arch.major}.{arch.minor}": Compat.load().gpu_names(arch) for arch in archs}


def _gpu_reason() -> str:
    if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists():
        return "this release runs nothing on the GPU yet"
    return "no GPU on this machine"
