"""How much the proofs of a wheel show: the level of each cell, and what is missing for a required level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from builder.check import OF_ANY_WHEEL, Check
from builder.errors import Code, UsageError
from builder.matrix.axes import Cell
from builder.proof import Proof, Verdict


class Level(StrEnum):
    """What the proofs of a wheel show in one cell; the help of `buildfarm publish` defines the levels."""

    NONE = "none"
    STATIC = "static"
    CPU = "cpu"
    GPU = "gpu"
    VERIFY = "verify"


#: The checks of the file that `publish` makes as `buildfarm verify` does. Not run, they are needed for VERIFY only.
OF_VERIFY = (*OF_ANY_WHEEL, Check.WINDOW)
#: What must have passed or be accepted in a cell, for CPU and GPU beyond STATIC; no check may have failed.
_NEEDED = {
    Level.STATIC: (Check.LINKAGE,),
    Level.CPU: (Check.IMPORT, Check.OPS, Check.LOADED, Check.VALUES),
    Level.GPU: (Check.IMPORT, Check.OPS, Check.LOADED, Check.GPU_VALUES),
}


def levels_of(text: str) -> list[Level]:
    """The levels that an option names, such as `static,gpu`; raises UsageError."""
    try:
        return [Level(word.strip()) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{text!r} is not a level; write none, static, cpu, gpu or verify, or several with commas: cpu,gpu",
            Code.VALUE_INVALID,
            where="--require",
        ) from None


def shortfalls(proofs: Sequence[Proof], level: Level) -> list[str]:
    """What is missing until the proofs of a wheel reach this level in each of their cells; empty: nothing.

    A sentence names the check, the cell and the reason. An op without a CPU kernel can reach `gpu` without `cpu`.
    """
    if level is Level.NONE:
        return list(_missing([proof for proof in proofs if _failed(proof)], (), "the wheel file"))
    cells = _cells(proofs)
    if level is Level.VERIFY:
        about = [proof for proof in proofs if (proof.cell is None and proof.check in OF_VERIFY) or _failed(proof)]
        return list(_missing(about, OF_VERIFY, "the wheel file"))
    found = [*_file_shortfalls(proofs), *([] if cells else ["no cell was tested"])]
    for cell in cells:
        found += _cell_shortfalls(proofs, cell, level)
    return list(dict.fromkeys(found))


def levels(proofs: Sequence[Proof]) -> dict[str, str]:
    """The highest level of each cell, by the name of the cell."""
    reached = {}
    possible = () if _file_shortfalls(proofs) else (Level.GPU, Level.CPU, Level.STATIC)
    for cell in _cells(proofs):
        good = (level for level in possible if not _cell_shortfalls(proofs, cell, level))
        reached[str(cell)] = str(next(good, Level.NONE))
    return reached


def _file_shortfalls(proofs: Sequence[Proof]) -> list[str]:
    about = [proof for proof in proofs if proof.cell is None and (proof.check not in OF_VERIFY or _failed(proof))]
    return list(_missing(about, (), "the wheel file")) if about else ["the wheel file: no check was run"]


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
            place = str(proof.cell or where)
            yield f"{place}: {proof.check}: {proof.verdict}" + (f": {proof.reason}" if proof.reason else "")
    made = {proof.check for proof in proofs}
    yield from (f"{where}: {check}: not run: there is no proof" for check in needed if check not in made)


def _failed(proof: Proof) -> bool:
    return proof.verdict is Verdict.FAILED
