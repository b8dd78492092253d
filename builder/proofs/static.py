"""All proofs that the file and a cell's symbol table decide: no GPU, and nothing of the wheel is executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.matrix.axes import Cell
from builder.proof import Check, Proof
from builder.proofs.abi3 import check_abi3
from builder.proofs.claim import Claim, not_run
from builder.proofs.contents import check_grafted, check_payload
from builder.proofs.device_code import check_device_code
from builder.proofs.linkage import check_linkage
from builder.proofs.metadata import check_metadata
from builder.proofs.providers import SymbolTable
from builder.proofs.stable import check_stable
from builder.proofs.tags import check_tags
from builder.wheels.facts import WheelFacts


def static_proofs(
    facts: WheelFacts,
    claim: Claim,
    provided: frozenset[str],
    symbols: Mapping[Cell, SymbolTable],
    *,
    gpus: Mapping[str, Sequence[str]] | None = None,
) -> list[Proof]:
    """Every static check, in the order they are shown; linkage once for each claimed cell.

    `provided` holds the file names of libraries that torch and its NVIDIA packages bring (`libcudart.so.13`);
    those of the tables in `symbols` are added. A claimed cell without a table gets linkage "not run". `gpus`
    names the GPUs of an architecture, e.g. {"9.0": ["H100"]}.
    """
    provided = provided.union(*(table.providers for table in symbols.values()))
    proofs = [
        check_payload(facts, claim),
        check_tags(facts, claim, provided),
        check_metadata(facts, claim),
        check_grafted(facts, provided),
        check_abi3(facts, claim),
        check_stable(facts, claim),
        *(_linkage(facts, cell, symbols.get(cell)) for cell in claim.cells),
        check_device_code(facts, claim, gpus=gpus),
    ]
    return [proof for proof in proofs if proof is not None]


def _linkage(facts: WheelFacts, cell: Cell, table: SymbolTable | None) -> Proof:
    if table is None:
        return not_run(facts, Check.LINKAGE, f"the torch of {cell} is not here to be read", cell=cell)
    return check_linkage(facts, cell, table)
