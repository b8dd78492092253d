"""Each pixel of a mesh is drawn once and only once, wherever the vertices lie: on its edges, at its corners, clipped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import diffrast as dr


def times_drawn(pos: Tensor, tri: Tensor, height: int, width: int) -> Tensor:
    """(h, w): how many triangles cover each pixel: every triangle in an image of its own."""
    total = torch.zeros(height, width, dtype=torch.int64)
    for first in range(0, len(tri), 512):
        each = torch.arange(first, min(first + 512, len(tri)), dtype=torch.int32)
        ranges = torch.stack([each, torch.ones_like(each)], 1)
        total += (dr.rasterize(None, pos, tri, (height, width), ranges)[0][..., 3] > 0).sum(0)
    return total


def grid(rows: int, columns: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points (i, j) of a grid in [0, 1] x [0, 1] and triangles that turn this way and that, cut along either diagonal."""
    y, x = torch.meshgrid(torch.linspace(0, 1, rows + 1), torch.linspace(0, 1, columns + 1), indexing="ij")
    triangles = []
    for i in range(rows):
        for j in range(columns):
            a, b = i * (columns + 1) + j, i * (columns + 1) + j + 1
            c, d = a + columns + 1, b + columns + 1
            pairs = ((a, b, c), (c, b, d)) if torch.rand((), generator=random) < 0.5 else ((a, b, d), (a, d, c))
            for corners in pairs:
                shift = int(torch.randint(3, (), generator=random))
                turned = corners[shift:] + corners[:shift]
                triangles.append(turned if torch.rand((), generator=random) < 0.5 else turned[::-1])
    return torch.stack([x, y], -1).reshape(-1, 2), torch.tensor(triangles, dtype=torch.int32)


def flat(points: Tensor, w: Tensor | float = 1.0) -> Tensor:
    """Points of the screen, in [-1, 1], as clip positions (V, 4)."""
    w = torch.as_tensor(w, dtype=points.dtype).expand(len(points))[:, None]
    return torch.cat([points * w, torch.zeros_like(w), w], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(8))
def test_grids(seed: int, dtype: torch.dtype):
    """A jittered grid over more than the view, each vertex with a w of its own."""
    random = torch.Generator().manual_seed(seed)
    rows, columns = (3, 4) if seed % 2 else (14, 11)
    points, tri = grid(rows, columns, random)
    jitter = (torch.rand(points.shape, generator=random) - 0.5) * 0.6 / torch.tensor([columns, rows])
    points = (points + jitter) * 4 - 2
    w = 0.1 + torch.rand(len(points), generator=random) * 5
    assert (times_drawn(flat(points, w).to(dtype), tri, 45, 52) == 1).all()


@pytest.mark.parametrize("shift", [0.0, 0.5, 0.25], ids=["corners", "centres", "between"])
@pytest.mark.parametrize("pixels", [1, 3])
def test_vertices_on_the_pixel_grid(shift: float, pixels: int):
    """Each vertex exactly on a pixel's centre (or corner), each edge through others."""
    random = torch.Generator().manual_seed(pixels)
    size = 16
    cells = size // pixels + 4
    points, tri = grid(cells, cells, random)
    points = ((points * cells - 2) * pixels + shift) * 2 / size - 1
    assert (times_drawn(flat(points), tri, size, size) == 1).all()


@pytest.mark.parametrize("spokes", [3, 4, 5, 8, 16, 97])
@pytest.mark.parametrize("centre", [(8.5, 8.5), (8.0, 8.0), (0.5, 0.5), (8.3, 11.71)], ids=str)
def test_fans(spokes: int, centre: tuple[float, float]):
    """Many triangles around one vertex, which lies on a pixel's centre."""
    angles = torch.arange(spokes) * 2 * math.pi / spokes
    at = torch.tensor(centre) * 2 / 17 - 1
    points = torch.cat([at[None], at + 9 * torch.stack([angles.cos(), angles.sin()], 1)])
    ring = torch.arange(spokes, dtype=torch.int32)
    tri = torch.stack([torch.zeros_like(ring), ring + 1, (ring + 1) % spokes + 1], 1)
    assert (times_drawn(flat(points), tri, 17, 17) == 1).all()


def test_slivers():
    """Triangles of a thousandth of a pixel: most cover nothing, together they leave no gap."""
    random = torch.Generator().manual_seed(0)
    points, tri = grid(1, 1500, random)
    points = points * torch.tensor([0.1, 4.0]) - torch.tensor([0.05, 2.0])
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
    inside = times_drawn(flat(points @ turn.T), tri, 64, 64)
    assert inside.max() == 1
    centres = (torch.arange(64) * 2 + 1) / 64 - 1
    x, y = (torch.stack(torch.meshgrid(centres, centres, indexing="xy"), -1) @ turn).unbind(-1)
    clear = (x.abs() - 0.05).abs() > 1 / 64
    assert torch.equal(inside[clear] == 1, (x.abs() < 0.05)[clear] & (y.abs() < 2)[clear])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(6))
def test_floor_through_the_eye(seed: int, dtype: torch.dtype):
    """A floor that runs from behind the eye to beyond the far plane: clipped at near, far and the guard band."""
    random = torch.Generator().manual_seed(seed)
    rows, columns = (2, 1) if seed == 0 else (9, 7)
    points, tri = grid(rows, columns, random)
    jitter = (torch.rand(points.shape, generator=random) - 0.5) * 0.6 / torch.tensor([columns, rows])
    ground = ((points + jitter) * 2 - 1) * 400
    roll = torch.tensor(0.7 * seed)
    x, y, depth = ground[:, 0], torch.full((len(ground),), -1.0), ground[:, 1]
    near, far = 1e-3, 90.0
    turned = torch.stack([x * roll.cos() - y * roll.sin(), x * roll.sin() + y * roll.cos()])
    z = (far + near) / (far - near) * depth - 2 * far * near / (far - near)
    pos = torch.stack([turned[0], turned[1], z, depth], 1).to(dtype)
    drawn = times_drawn(pos, tri, 48, 40)
    # A pixel's ray, rolled back, meets the floor at depth -1 / y.
    py, px = torch.meshgrid((torch.arange(48) * 2 + 1) / 48 - 1, (torch.arange(40) * 2 + 1) / 40 - 1, indexing="ij")
    level = -px * roll.sin() + py * roll.cos()
    clear = (level + 1 / far).abs() > 2e-3
    assert clear.double().mean() > 0.9 and drawn.max() == 1
    assert torch.equal(drawn[clear] == 1, (level < -1 / far)[clear])


@pytest.mark.parametrize("reach", [1e3, 1e5, 1e7, 1e12])
def test_huge_triangles(reach: float):
    """Corners far beyond what a fixed-point coordinate holds."""
    random = torch.Generator().manual_seed(1)
    angles = (torch.arange(7) + torch.rand(7, generator=random) * 0.9) * 2 * math.pi / 7
    points = torch.cat([torch.tensor([[0.013, -0.21]]), reach * torch.stack([angles.cos(), angles.sin()], 1)])
    ring = torch.arange(7, dtype=torch.int32)
    tri = torch.stack([torch.zeros_like(ring), ring + 1, (ring + 1) % 7 + 1], 1)
    assert (times_drawn(flat(points), tri, 31, 33) == 1).all()


def test_a_closed_surface_is_entered_and_left():
    """Of a sphere each pixel sees a front and a back: two triangles, or none outside of it."""
    random = torch.Generator().manual_seed(3)
    points, tri = grid(12, 24, random)
    # The seam and the poles share their vertices.
    row, column = torch.arange(13).repeat_interleave(25), torch.arange(25).repeat(13) % 24
    row_pole = torch.where((row == 0) | (row == 12), 0, column)
    shared = (row * 25 + row_pole)[tri.long()].to(torch.int32)
    polar, turn = points[:, 1] * math.pi, points[:, 0] * 2 * math.pi
    ball = torch.stack([polar.sin() * turn.cos(), polar.sin() * turn.sin(), polar.cos()], 1) * 0.8
    pos = torch.cat([ball, torch.ones(len(ball), 1)], 1)
    assert set(times_drawn(pos, shared, 50, 50).unique().tolist()) == {0, 2}
