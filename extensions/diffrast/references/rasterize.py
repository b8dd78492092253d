"""rasterize in plain PyTorch, in float64: each pixel's ray against each triangle, nothing clipped, nothing rounded.

A pixel's centre c = (fx, fy, 1) is a combination c = a0 p0 + a1 p1 + a2 p2 of a triangle's vertices p = (x, y, w),
found by solving that system. It is seen there when no a is negative; a are then barycentrics over w, and
depth = sum(a z).

Meant for scenes in which no pixel's centre comes as near as 1/256 pixel to an edge, and no two depths are equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: What a depth behind a peeled layer must be more than: float32 tells no finer.
BEHIND = 1e-5


def _centres(height: int, width: int) -> Tensor:
    """(h, w, 3): fx, fy, 1."""
    y = (torch.arange(height, dtype=torch.float64) + 0.5) * 2 / height - 1
    x = (torch.arange(width, dtype=torch.float64) + 0.5) * 2 / width - 1
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([grid_x, grid_y, torch.ones_like(grid_x)], dim=-1)


def _nearest(vertices: Tensor, tri: Tensor, first: int, count: int, front: Tensor, height: int, width: int) -> Tensor:
    """(h, w): the nearest triangle's number behind the depths `front`, 1-based, 0 for none."""
    centres = _centres(height, width)
    best = torch.full((height, width), math.inf, dtype=torch.float64)
    ids = torch.zeros((height, width), dtype=torch.int64)
    for number, corners in enumerate(tri.tolist()[first : first + count], start=first + 1):
        if not all(0 <= corner < len(vertices) for corner in corners):
            continue
        p = vertices[corners]
        matrix = p[:, [0, 1, 3]]
        if not p.isfinite().all() or torch.linalg.matrix_rank(matrix) < 3:
            continue
        a = torch.linalg.solve(matrix.T, centres.reshape(-1, 3).T).T.reshape(height, width, 3)
        depth = a @ p[:, 2]
        seen = (a >= 0).all(-1) & (depth.abs() <= 1) & (depth < best) & (depth > front)
        best = torch.where(seen, depth, best)
        ids = torch.where(seen, number, ids)
    return ids


def visible(
    pos: Tensor, tri: Tensor, height: int, width: int, ranges: Tensor | None = None, peel: Tensor | None = None
) -> Tensor:
    """(N, h, w) int64: the number of the triangle each pixel sees, 1-based, 0 for none."""
    vertices, tri = pos.detach().double().cpu(), tri.cpu()
    spans = [(0, len(tri))] * len(pos) if ranges is None else [tuple(span) for span in ranges.tolist()]
    found = []
    for image, (first, count) in enumerate(spans):
        front = torch.full((height, width), -math.inf, dtype=torch.float64)
        if peel is not None:
            layer = peel[image].detach().double().cpu()
            front = torch.where(layer[..., 3] > 0, layer[..., 2] + BEHIND, math.inf)
        mesh = vertices[image] if ranges is None else vertices
        found.append(_nearest(mesh, tri, first, count, front, height, width))
    empty = torch.zeros((0, height, width), dtype=torch.int64)
    return (torch.stack(found) if found else empty).to(pos.device)


def shade(pos: Tensor, tri: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """rast and rast_db (N, h, w, 4) of known triangles; differentiable in pos, but for z/w and the number."""
    height, width = ids.shape[1:]
    if not len(tri) or not ids.numel():
        nothing = pos.sum() * 0 + pos.new_zeros(*ids.shape, 4)
        return nothing, nothing.clone()
    seen = ids > 0
    corners = tri.long()[(ids - 1).clamp(min=0)]
    if pos.dim() == 3:
        image = torch.arange(len(pos), device=pos.device)[:, None, None, None]
        p = pos[image.expand_as(corners), corners]
    else:
        p = pos[corners]
    p = p.double()
    # A stand-in where nothing is seen, a triangle around the whole view: each system then has a solution.
    stand_in = torch.diag(torch.tensor([10.0, 10.0, 1.0], dtype=p.dtype, device=p.device))
    matrix = torch.where(seen[..., None, None], p[..., [0, 1, 3]], stand_in)
    solved = torch.linalg.inv(matrix)  # rows: da/dfx, da/dfy and a at (0, 0)
    a = (_centres(height, width).to(p.device)[:, :, None] @ solved)[..., 0, :]
    total = a.sum(-1, keepdim=True)
    b = a / total
    # b = a / total, so db = (da - b dtotal) / total; the centre moves by 2 / size per pixel.
    step = torch.tensor([2 / width, 2 / height], dtype=p.dtype, device=p.device)
    slopes = solved[..., :2, :]
    slopes = (slopes - b[..., None, :] * slopes.sum(-1, keepdim=True)) / total[..., None] * step[:, None]
    depth = (a * p[..., 2]).sum(-1).detach()
    rast = torch.stack([b[..., 0], b[..., 1], depth, ids.to(depth)], dim=-1)
    rast_db = slopes[..., :2].transpose(-1, -2).flatten(-2)
    nothing = torch.zeros_like(rast)
    mask = seen[..., None]
    return torch.where(mask, rast, nothing).to(pos.dtype), torch.where(mask, rast_db, nothing).to(pos.dtype)


def rasterize(
    pos: Tensor,
    tri: Tensor,
    height: int,
    width: int,
    ranges: Tensor | None = None,
    peel: Tensor | None = None,
    db: bool = True,
) -> tuple[Tensor, Tensor]:
    """The operator's arguments and results; rast_db has a last dimension of 0 without `db`."""
    rast, rast_db = shade(pos, tri, visible(pos, tri, height, width, ranges, peel))
    return rast, rast_db if db else rast_db[..., :0]


def rasterize_backward(
    pos: Tensor, tri: Tensor, rast: Tensor, grad_rast: Tensor, grad_rast_db: Tensor | None = None
) -> Tensor:
    """The gradient of pos, by autograd through `shade`."""
    with torch.enable_grad():
        leaf = pos.detach().double().requires_grad_()
        outputs = shade(leaf, tri, rast.detach()[..., 3].long())
        total = (outputs[0] * grad_rast.double()).sum()
        if grad_rast_db is not None:
            total = total + (outputs[1] * grad_rast_db.double()).sum()
        return torch.autograd.grad(total, leaf)[0].to(pos.dtype)
