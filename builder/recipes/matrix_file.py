"""Create matrix.yaml, or add an extension to it. The rest of the file, with its comments, stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.matrix.config import Matrix
from builder.matrix.yaml_document import read_document
from builder.recipes.yaml_lines import extended, scalar
from builder.store import write_atomic

_NEW = """\
# The versions that buildfarm builds for, and the extensions that it builds. Combinations that do not exist are skipped.
torch: [{torch}]
cuda: [{cuda}]
python: [{python}]

# GPU architectures to compile for, such as [8.0, 9.0, 12.0+PTX]. Without this key, each build takes the architectures
# of torch's own wheel. Fewer architectures compile faster.
{archs}

# Folders with an extension.yaml, relative to this file.
extensions:
  - {extension}
"""


def axes_text(matrix: Matrix) -> str:
    """The versions of a new matrix, and its GPU architectures: `torch 2.11.0, CUDA 13.0, Python 3.12`."""
    archs = f", archs {_joined(matrix.archs)}" if matrix.archs else ""
    return f"torch {_joined(matrix.torch)}, CUDA {_joined(matrix.cuda)}, Python {_joined(matrix.python)}{archs}"


def create_matrix(path: Path, extension: str, axes: Matrix) -> None:
    """Write a new matrix.yaml with these versions and one extension; without architectures, it has no key `archs`."""
    text = _NEW.format(
        torch=_joined(axes.torch),
        cuda=_joined(axes.cuda),
        python=_joined(axes.python),
        archs=f"archs: [{_joined(axes.archs)}]" if axes.archs else "# archs: [9.0]",
        extension=scalar(extension),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())


def add_extension(path: Path, extension: str) -> None:
    """Add a folder to `extensions` of an existing matrix.yaml, unless it is there already.

    Raises UsageError if the file is not valid, or if its `extensions` has a form that cannot be extended.
    """
    if extension not in (read_document(path).data.get("extensions") or []):
        write_atomic(path, extended(path.read_text(encoding="utf-8"), path, "extensions", extension).encode())


def _joined(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
