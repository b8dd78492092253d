"""The checks of `buildfarm verify` before a wheel is published, as far as no earlier check decided them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from builder.commands.targets import empty_recipe, recipe_for
from builder.formats import STATIC_FORMAT, VERIFY_FORMAT, digest_of, sha256_of
from builder.matrix.config import Recipe, Selection
from builder.proof import OF_ANY_WHEEL, Check, Proof, Verdict
from builder.proofs.cells.op_gate import apply_accepts
from builder.proofs.cells.prover import any_wheel_basis
from builder.proofs.claimed_cells import uses_torch
from builder.proofs.inventory import Shelf, shelf_of
from builder.proofs.verify.judge import Judge
from builder.publish.index.levels import OF_VERIFY
from builder.store import Store
from builder.wheelfile.archive import wheel_fault
from builder.wheelfile.facts import WheelFacts, open_wheel, read_facts

_GOOD = (Verdict.PASSED, Verdict.ACCEPTED)
#: Checks of wheels that do not use torch, such as dependencies.
_WITHOUT_TORCH = (Check.RECORD, Check.TAGS, Check.METADATA, Check.MODULES, Check.CONTENTS)


@dataclass(frozen=True)
class Verification:
    """Verifies the wheels of one run, and keeps the proofs in the store."""

    #: Its symbol inventories are those that the wheels are linked with.
    store: Store
    #: Their `accepts` hold for the checks of `verify` too.
    recipes: Sequence[Recipe] = ()
    #: The torch, CUDA and Python for which the wheels are published; empty: all that they claim.
    select: Selection = field(default_factory=Selection)

    @cached_property
    def _shelf(self) -> Shelf:
        return shelf_of(self.store)

    @cached_property
    def basis(self) -> str:
        """Digest of what the verdicts depend on besides the wheel: formats, inventories, and the selection."""
        known = list(map(str, self._shelf.releases))
        return digest_of([STATIC_FORMAT, VERIFY_FORMAT, known, repr(self.select)])[:16]

    def _basis_of(self, check: Check) -> str:
        return any_wheel_basis() if check in OF_ANY_WHEEL else self.basis

    def added(
        self, wheel: Path, proofs: Sequence[Proof], recipe: Recipe | None = None, facts: WheelFacts | None = None
    ) -> list[Proof]:
        """The proofs of a wheel, and those of the checks of `verify` that are missing among them.

        Other checks of `build` are added only for a wheel that has none of them. A wheel without a library that uses
        torch, such as a dependency, is judged by the checks that hold for any wheel. `recipe` is that of the wheel, or
        None: the one of its name. `facts` are those of the wheel, if they were read. Raises UsageError for a damaged
        wheel.
        """
        sha256 = facts.sha256 if facts else sha256_of(wheel)
        stored = [one for one in self.store.proofs(sha256) if one.basis == self._basis_of(one.check)]
        kept = _overruled(proofs, stored)
        known = {one.check for one in kept if self._is_decided(one, stored)}
        if not known.issuperset(OF_VERIFY):
            linked = any(one.check is Check.LINKAGE and one.verdict in _GOOD for one in proofs)
            made = list(self._made(wheel, facts or read_facts(wheel), known, linked=linked))
            made = [replace(one, basis=self._basis_of(one.check)) for one in made]
            self.store.save_proofs(made)
            kept = _overruled(kept, made)
        name = wheel.name.partition("-")[0]
        recipe = recipe or recipe_for(name, self.recipes, Selection()) or empty_recipe(name)
        mine = [one for one in kept if one.verdict is Verdict.FAILED and one.basis == self._basis_of(one.check)]
        return _overruled(kept, apply_accepts(mine, recipe))

    def _is_decided(self, proof: Proof, stored: Sequence[Proof]) -> bool:
        """Whether a check of the file need not run: a proof of `verify` holds for the same inventories.

        Everyone knows the basis of `record` and `loader`, so only the store's proofs of them count.
        """
        if proof.cell is not None:
            return False
        if proof.check in OF_VERIFY:
            mine = proof.basis == self._basis_of(proof.check) and (proof.check not in OF_ANY_WHEEL or proof in stored)
            return mine or proof.verdict is Verdict.ACCEPTED
        return proof.has_run

    def _made(self, wheel: Path, facts: WheelFacts, known: Collection[Check], *, linked: bool) -> Iterator[Proof]:
        with open_wheel(wheel) as archive:
            fault = "" if Check.RECORD in known else wheel_fault(archive)  # it reads every byte of the wheel
            made = Judge(self._shelf, self.select).judge(archive, facts, fault=fault).proofs
        wanted = set(OF_VERIFY)
        if not facts.libraries or not uses_torch(facts):
            wanted = set(_WITHOUT_TORCH)
        elif wanted.issuperset(known):
            wanted = set(Check) - {Check.GPUS, Check.LINKAGE}
        for one in made:
            if one.check is Check.LINKAGE:
                if one.verdict is Verdict.FAILED and not linked:
                    yield one
            elif one.check in wanted and one.check not in known:
                yield one


def _overruled(kept: Sequence[Proof], made: Sequence[Proof]) -> list[Proof]:
    """The proofs, with the new ones in place of those of the same check; "not run" never replaces a verdict.

    Unlike `builder.publish.index.new_wheel.merged`, it compares no times: the file beside a wheel may name any time.
    """
    found = {(one.cell, one.check): one for one in kept}
    for one in sorted(made, key=lambda proof: list(Check).index(proof.check)):
        earlier = found.get((one.cell, one.check))
        if earlier is None or not earlier.has_run or one.has_run:
            found[one.cell, one.check] = one
    return list(found.values())
