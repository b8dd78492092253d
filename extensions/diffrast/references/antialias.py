"""antialias in plain PyTorch, in float64, pair by pair, in the barycentric coordinates of the nearer triangle.

A triangle's vertices as rows (X, Y, w), X and Y in pixels times w, make a matrix M. Then (X, Y, 1) M^-1 are the
barycentric coordinates over w of what is seen at the pixel position (X, Y): affine in it, so one walks from a
pixel's centre until the first coordinate turns negative. And (Xm, Ym, wm) M^-1 tell on which side of each edge
another vertex lies.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

#: How far beyond a pixel's centre a crossing may lie; the tests keep away from it.
SLACK = 1 / 16


def antialias_topology(tri: Tensor) -> Tensor:
    """The rings of half-edges with equal vertices, (T, 3) int32; see `antialias_construct_topology_hash`."""
    rings: dict[tuple[int, int], list[int]] = defaultdict(list)
    for triangle, corners in enumerate(tri.tolist()):
        for k in range(3):
            first, second = sorted((corners[(k + 1) % 3], corners[(k + 2) % 3]))
            rings[first, second].append(3 * triangle + k)
    following = torch.empty(3 * tri.shape[0], dtype=torch.int32)
    for ring in rings.values():
        for position, half_edge in enumerate(ring):
            following[half_edge] = ring[(position + 1) % len(ring)]
    return following.reshape(tri.shape).to(tri.device)


def _owners(tri: Tensor) -> dict[frozenset[int], list[tuple[int, int]]]:
    """Edge to the (triangle, opposite vertex) pairs that own it."""
    owners: dict[frozenset[int], list[tuple[int, int]]] = defaultdict(list)
    for triangle, corners in enumerate(tri.tolist()):
        for k in range(3):
            owners[frozenset((corners[k - 2], corners[k - 1]))].append((triangle, corners[k]))
    return owners


def _exit(inverse: Tensor, start: tuple[float, float], step: tuple[int, int]) -> tuple[int, Tensor] | None:
    """Through the edge opposite which corner a walk leaves, and after how many pixels."""
    at_start = inverse.new_tensor([*start, 1.0]) @ inverse
    per_pixel = inverse.new_tensor([*map(float, step), 0.0]) @ inverse
    way = -at_start / per_pixel
    leaving = [k for k in range(3) if float(per_pixel.detach()[k]) < 0]
    if not leaving:
        return None
    corner = min(leaving, key=lambda k: float(way.detach()[k]))
    return corner, way[corner]


def antialias(
    color: Tensor, rast: Tensor, pos: Tensor, tri: Tensor, topology: Tensor | None = None, boost: float = 1.0
) -> Tensor:
    """The arguments and result of `torch.ops.diffrast.antialias`; differentiable in color and pos.

    topology is not looked at: edges are found here by vertex index.
    """
    batch, height, width, channels = color.shape
    owners = _owners(tri)
    corners = tri.tolist()
    boosted = pos.detach().double() + boost * (pos.double() - pos.detach().double())
    pixels = boosted[..., [0, 1, 3]] * boosted.new_tensor([width / 2, height / 2, 1.0])
    shift = boosted.new_tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [width / 2, height / 2, 1.0]])
    pixels = pixels @ shift  # pixel positions from the lower left corner of the image, times w
    ids, depths = rast[..., 3].tolist(), rast[..., 2].tolist()
    colors = color.double().reshape(-1, channels)
    receivers, givers, amounts = [], [], []
    for n in range(batch):
        vertices = pixels if pos.dim() == 2 else pixels[n]
        for y in range(height):
            for x in range(width):
                for x2, y2 in ((x + 1, y), (x, y + 1)):
                    if x2 >= width or y2 >= height or ids[n][y][x] == ids[n][y2][x2]:
                        continue
                    near, far = (x, y), (x2, y2)
                    near_id, far_id = ids[n][y][x], ids[n][y2][x2]
                    if near_id == 0 or (far_id != 0 and depths[n][y2][x2] < depths[n][y][x]):
                        near, far, near_id = far, near, far_id
                    triangle = int(near_id) - 1
                    inverse = torch.linalg.inv(vertices[corners[triangle]])
                    found = _exit(inverse, (near[0] + 0.5, near[1] + 0.5), (far[0] - near[0], far[1] - near[1]))
                    if found is None or not -SLACK <= float(found[1].detach()) <= 1 + SLACK:
                        continue
                    corner, way = found
                    edge = frozenset((corners[triangle][corner - 2], corners[triangle][corner - 1]))
                    sides = [
                        float((vertices[opposite] @ inverse)[corner].detach())
                        for other, opposite in owners[edge]
                        if other != triangle
                    ]
                    if any(side < 0 for side in sides):
                        continue
                    nearby = float(way.detach()) < 0.5  # the far colour reaches into the near pixel
                    near_row, far_row = ((n * height + q) * width + p for p, q in (near, far))
                    receivers.append(near_row if nearby else far_row)
                    givers.append(far_row if nearby else near_row)
                    amounts.append((way - 0.5).abs())
    if not receivers:
        return color + 0 * pos.sum()
    to, other = torch.tensor(receivers, device=color.device), torch.tensor(givers, device=color.device)
    mixed = colors.index_add(0, to, torch.stack(amounts)[:, None] * (colors[other] - colors[to]))
    return mixed.reshape(color.shape).to(color.dtype)


def antialias_backward(
    color: Tensor, rast: Tensor, pos: Tensor, tri: Tensor, topology: Tensor, boost: float, grad_out: Tensor
) -> tuple[Tensor, Tensor]:
    """The arguments and results of `torch.ops.diffrast.antialias_backward`, by autograd."""
    with torch.enable_grad():
        leaves = [tensor.detach().double().requires_grad_() for tensor in (color, pos)]
        out = antialias(leaves[0], rast, leaves[1], tri, topology, boost)
        grads = torch.autograd.grad(out, leaves, grad_out.double(), materialize_grads=True)
    return grads[0].to(color.dtype), grads[1].to(pos.dtype)
