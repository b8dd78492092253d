"""The support matrix, by torch, CUDA and Python, from builder/matrix/compat.yaml and matrix.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.matrix.axes import Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.load import load_matrix
from docs.scripts.markdown import page, table

ROOT = Path(__file__).parent.parent.parent

_PAGE = """\
Each field lists the Pythons for which PyTorch has a wheel of the row's torch and the column's CUDA, for Linux on
x86_64. An empty field means that there is no such wheel. Only the Pythons in the `matrix.yaml` of the repository are
listed. The source of each fact is in `builder/matrix/compat.yaml`."""

_TOOLKITS = """\
The column "newest gcc" gives the newest gcc that the nvcc of this CUDA version accepts as host compiler.
[Build environment](build-environment.md#packages) says where a build gets the toolkit."""


def support_page() -> str:
    """The page of the reference."""
    compat = Compat.load()
    _, cudas, _ = _axes()
    rows = []
    for cuda in cudas:
        facts = compat.toolkit(cuda)
        archs = ", ".join(str(arch) for arch in sorted(facts.archs) if not arch.suffix)
        rows.append([str(cuda), archs, str(facts.gcc_max)])
    return page(
        "Support matrix",
        _PAGE,
        _matrix(),
        "## CUDA toolkits",
        _TOOLKITS,
        table(["CUDA", "GPU architectures", "newest gcc"], rows),
    )


def _axes() -> tuple[Sequence[Torch], Sequence[Cuda], Sequence[Python]]:
    matrix = load_matrix(ROOT / "matrix.yaml")
    return matrix.torch, matrix.cuda, matrix.python


def _matrix() -> str:
    torches, cudas, pythons = _axes()
    rows = [[str(torch.series), *(_pythons(torch, cuda, pythons) for cuda in cudas)] for torch in torches]
    return table(["torch", *(f"CUDA {cuda}" for cuda in cudas)], rows)


def _pythons(torch: Torch, cuda: Cuda, pythons: Sequence[Python]) -> str:
    """a range such as 3.10 to 3.13, or empty."""
    compat = Compat.load()
    there = [each for each in pythons if compat.why_not(torch, cuda, each, Platform.LINUX_X86_64) is None]
    if not there:
        return ""
    return str(there[0]) if len(there) == 1 else f"{there[0]}\u2013{there[-1]}"
