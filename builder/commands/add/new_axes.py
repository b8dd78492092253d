"""The torch, CUDA and Python of a new matrix.yaml: those that the user selects, else the newest that fit."""

from __future__ import annotations

import sys

from builder.errors import UsageError
from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.recipes.matrix_file import NewAxes


def new_axes(select: Selection) -> NewAxes:
    """Return the axes of a new matrix. Raises UsageError if a value is unknown or the values exclude each other."""
    compat = Compat.load()
    cudas = [compat.resolve_cuda(text) for text in select.cuda]
    pythons = [compat.resolve_python(text) for text in select.python]
    torches = [compat.resolve_torch(text) for text in select.torch] or [_newest_torch(compat, cudas, pythons)]
    cudas = cudas or [_cuda_of(compat, torches[-1])]
    return NewAxes(tuple(torches), tuple(cudas), tuple(pythons or [_python_of(compat, torches[-1])]))


def _newest_torch(compat: Compat, cudas: list[Cuda], pythons: list[Python]) -> Torch:
    for torch in reversed(compat.torches):
        missing = [compat.why_not_cuda(torch, cuda) for cuda in cudas]
        missing += [compat.why_not_python(torch, python) for python in pythons]
        if not any(missing):
            return torch
    wanted = ", ".join([*(f"CUDA {cuda}" for cuda in cudas), *(f"Python {python}" for python in pythons)])
    raise UsageError(
        f"no torch release has wheels for all of these: {wanted}",
        hints=["pass fewer values of --cuda and --python; buildfarm chooses a value for an option that you omit"],
    )


def _cuda_of(compat: Compat, torch: Torch) -> Cuda:
    """The CUDA of the torch on the package index, or the newest one that this torch was built for."""
    default = next((cuda for cuda in compat.cudas if compat.is_default_variant(torch, cuda)), None)
    return default or max(compat.torch(torch).variants)


def _python_of(compat: Compat, torch: Torch) -> Python:
    """The Python that runs buildfarm, or the newest one that this torch has wheels for."""
    here = Python(sys.version_info.major, sys.version_info.minor)
    if compat.why_not_python(torch, here) is None:
        return here
    return max(python for python in compat.torch(torch).pythons[torch] if not python.free_threaded)
