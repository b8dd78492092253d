"""The op gate's cases for rasterize and its gradient. No pixel's centre lies near an edge (tests/test_rasterize.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make

from . import rasterize as plain

HEIGHT, WIDTH = 7, 10
TRIANGLES: tuple[tuple[int, int, int], ...] = ((0, 1, 2), (2, 1, 3), (4, 5, 6))
#: A quad in perspective, seen from both sides in the two images, and a triangle that pierces it.
QUAD = ((-1.13, -0.97, 0.24, 1.3), (0.91, -0.83, 0.11, 1.1), (-0.67, 0.86, 0.52, 1.2), (0.74, 0.69, 0.33, 0.9))
PIERCING = ((-0.23, -0.61, -0.37, 1.0), (0.57, 0.03, 0.41, 0.8), (-0.41, 0.53, 0.83, 1.4))
#: A floor that passes under the eye: one vertex behind it, one beyond the far plane.
FLOOR = ((-2.81, -0.99, 1.84, 2.1), (2.7, -1.08, -2.3, -1.3), (3.29, -0.9, 7.1, 6.3), (-5.22, 1.91, 5.2, 5.9))


def mesh(make: Make, *, images: int = 2, grad: bool = False) -> tuple[Tensor, Tensor]:
    """pos (N, 7, 4) and tri: the quad and what pierces it."""
    pos = torch.tensor([QUAD + PIERCING], dtype=torch.float64).repeat(images, 1, 1)
    if images > 1:
        pos[1:, :, 0] *= -0.9
    return make.tensor(pos, grad=grad), make.integers(TRIANGLES, torch.int32)


def floor(make: Make, *, grad: bool = False) -> tuple[Tensor, Tensor]:
    """pos (1, 4, 4) and tri: two triangles that the near and the far plane cut."""
    return make.tensor([FLOOR], grad=grad), make.integers([(0, 1, 2), (0, 2, 3)], torch.int32)


def _instanced(*, db: bool = True) -> Callable[[Make], Sequence[Any]]:
    def inputs(make: Make) -> Sequence[Any]:
        return (*mesh(make, grad=True), HEIGHT, WIDTH, None, None, db)

    return inputs


def _clipped(make: Make) -> Sequence[Any]:
    return (*floor(make, grad=True), HEIGHT, WIDTH, None, None, True)


def _ranges(make: Make) -> Sequence[Any]:
    pos, tri = mesh(make, images=1)
    ranges = make.integers([(0, 3), (2, 1), (1, 0), (0, 2)], torch.int32)
    return pos[0].detach().requires_grad_(), tri, HEIGHT, WIDTH, ranges, None, True


def _peeled(make: Make) -> Sequence[Any]:
    pos, tri = mesh(make, grad=True)
    front, _ = plain.rasterize(pos.detach(), tri, HEIGHT, WIDTH)
    front[..., 2] += 1e-4  # the reference's depths are not the operator's own to the last bit
    return pos, tri, HEIGHT, WIDTH, None, front, True


def _no_triangles(make: Make) -> Sequence[Any]:
    return make.randn(2, 5, 4, grad=True), make.integers([], torch.int32).reshape(0, 3), HEIGHT, WIDTH, None, None, True


def _no_images(make: Make) -> Sequence[Any]:
    return make.randn(0, 7, 4, grad=True), make.integers(TRIANGLES, torch.int32), HEIGHT, WIDTH, None, None, True


def _backward(scene: Callable[[Make], tuple[Tensor, Tensor]], *, db: bool) -> Callable[[Make], Sequence[Any]]:
    def inputs(make: Make) -> Sequence[Any]:
        pos, tri = scene(make)
        rast, _ = plain.rasterize(pos, tri, HEIGHT, WIDTH)
        return pos, tri, rast, make.randn(*rast.shape), make.randn(*rast.shape) if db else None

    return inputs


def _backward_of_nothing(make: Make) -> Sequence[Any]:
    pos, tri, *_ = _no_triangles(make)
    rast = torch.zeros(2, HEIGHT, WIDTH, 4, dtype=pos.dtype, device=pos.device)
    return pos.detach(), tri, rast, make.randn(*rast.shape), None


#: No gradcheck: z/w depends on pos and by convention has no gradient; the reference's gradients are compared instead.
_FORWARD: dict[str, Any] = {"op": "diffrast::rasterize", "reference": plain.rasterize, "mixed_devices": (4,)}
_BACKWARD: dict[str, Any] = {
    "op": "diffrast::rasterize_backward",
    "reference": plain.rasterize_backward,
    "deterministic": ("cpu",),
    "tolerances": {torch.float32: (1e-4, 1e-4)},
}

CASES: list[Case] = [
    Case(name="two images", inputs=_instanced(), **_FORWARD),
    Case(name="without derivatives", inputs=_instanced(db=False), **_FORWARD),
    Case(name="behind the eye", inputs=_clipped, **_FORWARD),
    Case(name="float64", inputs=_clipped, dtypes=(torch.float64,), devices=("cpu",), **_FORWARD),
    Case(name="ranges", inputs=_ranges, **_FORWARD),
    Case(name="second layer", inputs=_peeled, **_FORWARD),
    Case(name="no triangles", inputs=_no_triangles, edge="empty", **_FORWARD),
    Case(name="no images", inputs=_no_images, edge="batch", **_FORWARD),
    Case(name="two images", inputs=_backward(mesh, db=True), **_BACKWARD),
    Case(name="without derivatives", inputs=_backward(mesh, db=False), **_BACKWARD),
    Case(name="behind the eye", inputs=_backward(floor, db=True), **_BACKWARD),
    Case(name="float64", inputs=_backward(floor, db=True), dtypes=(torch.float64,), devices=("cpu",), **_BACKWARD),
    Case(name="no triangles", inputs=_backward_of_nothing, edge="empty", **_BACKWARD),
]
