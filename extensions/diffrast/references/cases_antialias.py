"""The op gate's cases for antialias, its gradient and its table of edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from builder.gate import Case, Make

from . import scenes
from .antialias import antialias, antialias_backward, antialias_topology

Inputs = Callable[[Make], Sequence[Any]]


def cubes() -> scenes.Scene:
    """Two small cubes."""
    return scenes.cubes(2, 7, 6)


SCENES: dict[str, Callable[[], scenes.Scene]] = {
    "range mode, overlap": scenes.overlap,
    "range mode, folded surfaces": scenes.fold,
    "range mode, a floor behind the eye": scenes.behind_the_eye,
    "cubes, one an image": cubes,
}
#: Positions get gradients of hundreds where an outline is steep.
TOLERANCES = {torch.float32: (1e-4, 2e-3)}


def inputs(
    scene: Callable[[], scenes.Scene], channels: int = 3, batch: int | None = None, *, grad: bool = False
) -> Inputs:
    """Arguments of `diffrast::antialias`, with the first `batch` images of the scene."""

    def make_inputs(make: Make) -> Sequence[Any]:
        pos, tri, rast = scene()
        if batch is not None:
            pos, rast = pos[:batch], rast[:batch]
        triangles = make.integers(tri, torch.int32)
        return (
            make.randn(*rast.shape[:3], channels, grad=grad),
            make.tensor(rast),
            make.tensor(pos, grad=grad),
            triangles,
            antialias_topology(triangles),
        )

    return make_inputs


def backward_inputs(scene: Callable[[], scenes.Scene], channels: int = 3, batch: int | None = None) -> Inputs:
    """Arguments of `diffrast::antialias_backward`, the gradient of pos boosted."""

    def make_inputs(make: Make) -> Sequence[Any]:
        forward = inputs(scene, channels, batch)(make)
        return *forward, 2.5, make.randn(*forward[0].shape)

    return make_inputs


CASES: list[Case] = [
    *(
        Case(
            "diffrast::antialias",
            inputs(scene, grad=True),
            name=name,
            reference=antialias,
            tolerances=TOLERANCES,
            gradcheck=True,
            deterministic=("cpu",),  # on CUDA the gradient of pos is summed by atomics
        )
        for name, scene in SCENES.items()
    ),
    *(
        Case(
            "diffrast::antialias_backward",
            backward_inputs(scene, channels=6),
            name=name,
            reference=antialias_backward,
            tolerances=TOLERANCES,
            deterministic=("cpu",),
        )
        for name, scene in list(SCENES.items())[2:]
    ),
    *(
        Case("diffrast::antialias_topology", lambda make, scene=scene: (make.integers(scene().tri, torch.int32),),
             name=name, reference=antialias_topology)
        for name, scene in list(SCENES.items())[1::2]
    ),
    Case("diffrast::antialias", inputs(cubes, batch=0, grad=True), name="no images", reference=antialias,
         edge="empty", deterministic=("cpu",)),
    Case("diffrast::antialias", inputs(cubes, batch=1, grad=True), name="one image", reference=antialias,
         tolerances=TOLERANCES, edge="batch", deterministic=("cpu",)),
    Case("diffrast::antialias_backward", backward_inputs(cubes, batch=0), name="no images",
         reference=antialias_backward, edge="empty", deterministic=("cpu",)),
    Case("diffrast::antialias_backward", backward_inputs(cubes, batch=1), name="one image",
         reference=antialias_backward, tolerances=TOLERANCES, edge="batch", deterministic=("cpu",)),
    Case("diffrast::antialias_topology", lambda make: (make.integers(torch.zeros(0, 3), torch.int32),),
         name="no triangles", reference=antialias_topology, edge="empty"),
    Case("diffrast::antialias", inputs(cubes, grad=True), name="float64", reference=antialias,
         dtypes=(torch.float64,), devices=("cpu",)),
    Case("diffrast::antialias_backward", backward_inputs(cubes), name="float64", reference=antialias_backward,
         dtypes=(torch.float64,), devices=("cpu",)),
]  # fmt: skip
