"""A cell's own packages as requirements: what an environment or an image of it starts with. Pure."""

from __future__ import annotations

from builder.matrix.axes import Cuda, Torch


def torch_requirement(torch: Torch, cuda: Cuda, *, default_variant: bool) -> str:
    """The exact requirement of a cell's torch. Only the default variant is on the default index, without local part."""
    return f"torch=={torch}" if default_variant else f"torch=={torch}+{cuda.variant}"


def cell_requirements(torch: Torch, cuda: Cuda, *, default_variant: bool) -> tuple[str, ...]:
    """A cell's torch, and NumPy, without which torch warns at every import."""
    # torch before 2.3 was compiled for NumPy 1 and warns or fails beside 2.
    numpy = "numpy<2" if (torch.major, torch.minor) < (2, 3) else "numpy"
    return torch_requirement(torch, cuda, default_variant=default_variant), numpy
