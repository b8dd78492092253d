"""All checks that need only the file and the symbol tables of cells: no GPU, and nothing is executed."""

from __future__ import annotations

from collections.abc import Mapping

from builder.matrix.axes import Cell
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, not_run
from builder.proofs.static.contents import check_contents, check_grafted, check_payload, check_size
from builder.proofs.static.device_code import check_device_code
from builder.proofs.static.linkage import check_linkage_in
from builder.proofs.static.metadata import check_metadata
from builder.proofs.static.stable_abi import check_abi3, check_stable
from builder.proofs.static.symbol_table import SymbolTable
from builder.proofs.static.tags import check_modules, check_tags
from builder.wheelfile.facts import WheelFacts

_UNREAD = "the libraries of torch in {} were not read, so the wheel's symbols were not looked up"


def static_proofs(
    facts: WheelFacts, claim: WheelClaim, provided: frozenset[str], symbols: Mapping[Cell, SymbolTable]
) -> list[Proof]:
    """Run every static check, in the order in which they are printed; linkage once for each claimed cell.

    `provided` holds the file names of libraries that torch and its NVIDIA packages provide (`libcudart.so.13`); those
    of the tables in `symbols` are added. Linkage of a claimed cell without a table is not run.
    """
    provided = provided.union(*(table.libraries for table in symbols.values()))
    proofs = [
        check_payload(facts, claim),
        check_tags(facts, claim, provided),
        check_modules(facts),
        check_metadata(facts, claim),
        check_grafted(facts, provided, foreign=claim.foreign),
        check_contents(facts),
        check_abi3(facts, claim),
        check_stable(facts, claim),
        *(
            check_linkage_in(facts, claim, cell, symbols[cell])
            if cell in symbols
            else not_run(facts, Check.LINKAGE, _UNREAD.format(cell), cell=cell)
            for cell in claim.cells
        ),
        check_device_code(facts, claim),
        check_size(facts, claim),
    ]
    return [proof for proof in proofs if proof is not None]
