"""Small meshes and their rasters for the cases and tests of interpolate and antialias, in float64.

They keep away from what has no derivative: pixel centres on edges, equal depths, edges through pixel centres.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .rasterize import rasterize


class Scene(NamedTuple):
    """A mesh and what is seen of it: pos (N, V, 4) or (V, 4), tri (T, 3) int32, rast (N, h, w, 4)."""

    pos: Tensor
    tri: Tensor
    rast: Tensor


def draw(pos: Tensor, tri: Tensor, height: int, width: int) -> Tensor:
    """The raster (N, h, w, 4) of a mesh; positions of shape (V, 4) make one image of all triangles."""
    ranges = torch.tensor([[0, len(tri)]], dtype=torch.int32) if pos.dim() == 2 else None
    return rasterize(pos, tri, height, width, ranges)[0]


def _scene(pos: list[list[float]] | Tensor, tri: list[list[int]], height: int, width: int) -> Scene:
    positions = torch.as_tensor(pos, dtype=torch.float64)
    triangles = torch.tensor(tri, dtype=torch.int32).reshape(-1, 3)
    return Scene(positions, triangles, draw(positions, triangles, height, width))


def overlap() -> Scene:
    """Range mode: a quad of two triangles, a nearer triangle over its corner, with perspective."""
    pos = [
        [-0.83, -0.71, 0.31, 1.0], [0.62, -0.66, 0.33, 1.0], [0.57, 0.73, 0.35, 1.0], [-0.77, 0.64, 0.32, 1.0],
        [0.13, 0.11, -0.21, 0.9], [1.23, 0.21, -0.13, 1.4], [0.41, 0.97, 0.07, 1.1],
    ]  # fmt: skip
    return _scene(pos, [[0, 1, 2], [0, 2, 3], [4, 5, 6]], 9, 11)


def fold() -> Scene:
    """Range mode: two triangles that fold over their shared edge, and a third that owns it too and folds as well."""
    pos = [
        [0.31, -0.83, 0.0, 1.0], [0.37, 0.79, 0.0, 1.0],
        [-0.73, 0.09, -0.3, 1.0], [-0.51, -0.37, 0.2, 1.0], [-0.21, 0.53, 0.4, 1.0],
    ]  # fmt: skip
    return _scene(pos, [[0, 1, 2], [1, 0, 3], [0, 1, 4]], 8, 8)


CUBE_FACES = [
    [0, 2, 1], [1, 2, 3], [4, 5, 6], [5, 7, 6], [0, 1, 4], [1, 5, 4],
    [2, 6, 3], [3, 6, 7], [0, 4, 2], [2, 4, 6], [1, 3, 5], [3, 7, 5],
]  # fmt: skip


def cubes(batch: int = 2, height: int = 12, width: int = 10) -> Scene:
    """Instanced: a cube in perspective, turned by another angle in each image."""
    corners = torch.tensor([[x, y, z, 1.0] for z in (-1, 1) for y in (-1, 1) for x in (-1, 1)], dtype=torch.float64)
    images = []
    for n in range(batch):
        a, b = 0.61 + 0.9 * n, 0.47 + 0.35 * n
        turn_y = torch.tensor(
            [[math.cos(a), 0, math.sin(a), 0], [0, 1, 0, 0], [-math.sin(a), 0, math.cos(a), 0], [0, 0, 0, 1]]
        )
        turn_x = torch.tensor(
            [[1, 0, 0, 0], [0, math.cos(b), -math.sin(b), 0], [0, math.sin(b), math.cos(b), 0], [0, 0, 0, 1]]
        )
        move = torch.tensor([[1.0, 0, 0, 0.03], [0, 1, 0, -0.05], [0, 0, 1, -4.2], [0, 0, 0, 1]])
        near, far = 1.0, 10.0
        lens = torch.tensor(
            [
                [2.0, 0, 0, 0],
                [0, 2.0, 0, 0],
                [0, 0, -(far + near) / (far - near), -2 * far * near / (far - near)],
                [0, 0, -1, 0],
            ]
        )
        images.append(corners @ (lens @ move @ turn_x @ turn_y).double().T)
    return _scene(torch.stack(images), CUBE_FACES, height, width)


def behind_the_eye() -> Scene:
    """Range mode: a floor that runs on behind the eye, so that two of its vertices have a negative w."""
    pos = [[-2.1, -0.9, 0.8, 1.6], [1.7, -0.8, 0.9, 1.7], [-1.3, -0.9, -0.9, -0.7], [1.9, -1.1, -0.9, -0.6]]
    return _scene(pos, [[0, 1, 2], [1, 3, 2]], 10, 9)
