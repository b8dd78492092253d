"""How much the proofs of a wheel show: the level of each cell, and what is missing for a required level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from builder.check import Check
from builder.matrix.axes import Cell
from builder.proof import Proof, Verdict


class Level(StrEnum):
    """What the proofs of a wheel show in one cell. Each level includes the levels before it."""

    meaning: str
    """What the level shows, in one sentence."""

    def __new__(cls, value: str, meaning: str = "") -> Level:
        """A member with its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    NONE = "none", "A check failed or did not run."
    STATIC = "static", "Every check of the wheel file passed, and the cell defines every symbol of its libraries."
    CPU = (
        "cpu",
        "Also, the wheel was imported in the cell, every op has a test, and every result is right.",
    )
    GPU = "gpu", "Also, every result is right on a GPU."


#: What must have passed or be accepted in a cell, beyond the level before; no check may have failed at any level.
_NEEDED = {
    Level.STATIC: (Check.LINKAGE,),
    Level.CPU: (Check.IMPORT, Check.OPS, Check.LOADED, Check.VALUES),
    Level.GPU: (Check.IMPORT, Check.OPS, Check.LOADED, Check.GPU_VALUES),
}


def shortfalls(proofs: Sequence[Proof], level: Level) -> list[str]:
    """What is missing until the proofs of a wheel show this level in each of their cells; empty: nothing.

    A sentence names the check, the cell and the reason. An op without a CPU kernel can reach `gpu` without `cpu`.
    """
    if level is Level.NONE:
        return []
    cells = _cells(proofs)
    found = [] if cells else ["no cell was tested"]
    found += _missing([proof for proof in proofs if proof.cell is None], (), "the wheel file")
    for cell in cells:
        found += _cell_shortfalls(proofs, cell, level)
    return list(dict.fromkeys(found))


def levels(proofs: Sequence[Proof]) -> dict[str, str]:
    """The highest level of each cell, by the name of the cell."""
    reached = {}
    about_file = [proof for proof in proofs if proof.cell is None]
    for cell in _cells(proofs):
        level = Level.NONE
        if about_file and not list(_missing(about_file, (), "")):
            good = (one for one in (Level.GPU, Level.CPU, Level.STATIC) if not _cell_shortfalls(proofs, cell, one))
            level = next(good, Level.NONE)
        reached[str(cell)] = str(level)
    return reached


def _cells(proofs: Sequence[Proof]) -> list[Cell]:
    return list(dict.fromkeys(proof.cell for proof in proofs if proof.cell))


def _cell_shortfalls(proofs: Sequence[Proof], cell: Cell, level: Level) -> list[str]:
    needed = _NEEDED[Level.STATIC] if level is Level.STATIC else (*_NEEDED[Level.STATIC], *_NEEDED[level])
    about = [proof for proof in proofs if proof.cell == cell and (proof.check in needed or _failed(proof))]
    return list(_missing(about, needed, str(cell)))


def _missing(proofs: Sequence[Proof], needed: Sequence[Check], where: str) -> Iterator[str]:
    """A sentence for each check that is neither passed nor accepted, and for each needed one without a proof."""
    for proof in proofs:
        if proof.verdict not in {Verdict.PASSED, Verdict.ACCEPTED}:
            yield f"{where}: {proof.check}: {proof.verdict}" + (f": {proof.reason}" if proof.reason else "")
    made = {proof.check for proof in proofs}
    yield from (f"{where}: {check}: not run: there is no proof" for check in needed if check not in made)


def _failed(proof: Proof) -> bool:
    return proof.verdict is Verdict.FAILED
