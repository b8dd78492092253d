"""Wheels and proofs for the tests of the index."""

from collections.abc import Sequence
from pathlib import Path

from builder.commands.index.manage import IndexCheck, check_index
from builder.formats import sha256_of
from builder.matrix.axes import Cell
from builder.proof import Check, Proof, Verdict
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.repository import NewWheel, Repository
from tests.unit.loopback import pure_wheel

CELL = "torch2.11.0-cu130-cp312"
#: The checks of a wheel whose ops were executed on the CPU.
ON_CPU = (Check.LINKAGE, Check.IMPORT, Check.OPS, Check.LOADED, Check.VALUES)


def proofs_of(
    wheel: Path, checks: Sequence[Check] = ON_CPU, *, cells: Sequence[str] = (CELL,), verdict: Verdict = Verdict.PASSED
) -> list[Proof]:
    """Proofs of a wheel: its file and, in each cell, these checks."""
    sha256 = sha256_of(wheel)
    proofs = [Proof(sha256, None, Check.TAGS, Verdict.PASSED)]
    return proofs + [Proof(sha256, Cell.parse(cell), check, verdict) for cell in cells for check in checks]


def ready(folder: Path, name: str = "my_ext", version: str = "1.0", *, text: str = "", proven: bool = True) -> NewWheel:
    """A wheel to publish; `text` makes its content different from others of the same name."""
    wheel = pure_wheel(folder, name, version, {f"{name}.py": f"{text!r}\n"})
    return new_wheel(wheel, proofs_of(wheel) if proven else [])


def checked(repository: Repository) -> IndexCheck:
    """The result of a check of an index whose pages are those that `index write-pages` writes."""

    def pages(folder: str = ".") -> dict[str, bytes]:
        found = {f"{folder}/{name}": data for name, data in repository.objects.read_all(folder).items()}
        for name in {*repository.objects.folders(folder)} - {"files", "records", "pending"}:
            found |= pages(f"{folder}/{name}")
        return found

    result, before = check_index(repository), pages()
    repository.write_all_pages()
    assert pages() == before
    return result
