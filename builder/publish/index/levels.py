"""How much the proofs of a wheel show: the level of each cell, and what is missing for a required level."""

from collections.abc import Sequence
from enum import StrEnum

from builder.errors import Code, UsageError
from builder.matrix.axes import Cell
from builder.proof import OF_ANY_WHEEL, Check, Proof, Verdict


class Level(StrEnum):
    """What the proofs of a wheel show in one cell; the help of `buildfarm publish` defines the levels."""

    NONE = "none"
    STATIC = "static"
    CPU = "cpu"
    GPU = "gpu"


#: The checks of the file that `publish` makes as `buildfarm verify` does. Not run, no level needs them.
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
        why = f"{text!r} is not a level; write none, static, cpu or gpu, or several with commas: cpu,gpu"
        raise UsageError(why, Code.VALUE_INVALID, where="--require") from None


def shortfalls(proofs: Sequence[Proof], level: Level) -> list[Proof]:
    """What is missing until the proofs of a wheel reach this level in each of their cells; empty: nothing.

    A check without a proof did not run. An op without a CPU kernel can reach `gpu` without `cpu`.
    """
    if level is Level.NONE:
        return _missing([proof for proof in proofs if _failed(proof)])
    cells = _cells(proofs)
    found = _of_file(proofs) + ([] if cells else [_not_run(None, Check.IMPORT, "no cell was tested")])
    return found + [proof for cell in cells for proof in _of_cell(proofs, cell, level)]


def sentence(proof: Proof) -> str:
    """What is missing, with the check, the cell and the reason."""
    reason = f": {proof.reason}" if proof.reason else ""
    return f"{proof.cell or 'the wheel file'}: {proof.check}: {proof.verdict}{reason}"


def levels(proofs: Sequence[Proof]) -> dict[str, str]:
    """The highest level of each cell, by the name of the cell."""
    reached = {}
    possible = () if _of_file(proofs) else (Level.GPU, Level.CPU, Level.STATIC)
    for cell in _cells(proofs):
        good = (level for level in possible if not _of_cell(proofs, cell, level))
        reached[str(cell)] = str(next(good, Level.NONE))
    return reached


def _of_file(proofs: Sequence[Proof]) -> list[Proof]:
    about = [proof for proof in proofs if proof.cell is None and (proof.check not in OF_VERIFY or _failed(proof))]
    return _missing(about) if about else [_not_run(None, Check.PAYLOAD, "no check of the file was run")]


def _cells(proofs: Sequence[Proof]) -> list[Cell]:
    return list(dict.fromkeys(proof.cell for proof in proofs if proof.cell))


def _of_cell(proofs: Sequence[Proof], cell: Cell, level: Level) -> list[Proof]:
    needed = _NEEDED[Level.STATIC] if level is Level.STATIC else (*_NEEDED[Level.STATIC], *_NEEDED[level])
    about = [proof for proof in proofs if proof.cell == cell and (proof.check in needed or _failed(proof))]
    return _missing(about, needed, cell)


def _missing(proofs: Sequence[Proof], needed: Sequence[Check] = (), cell: Cell | None = None) -> list[Proof]:
    """The proofs that are neither passed nor accepted, and one for each needed check that has none."""
    made = {proof.check for proof in proofs}
    bad = [proof for proof in proofs if proof.verdict not in {Verdict.PASSED, Verdict.ACCEPTED}]
    return bad + [_not_run(cell, check, "there is no proof") for check in needed if check not in made]


def _not_run(cell: Cell | None, check: Check, reason: str) -> Proof:
    return Proof("", cell, check, Verdict.NOT_RUN, reason)


def _failed(proof: Proof) -> bool:
    return proof.verdict is Verdict.FAILED
