"""Cameras: OpenGL matrices, and rotations, chosen or drawn evenly."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def perspective(zoom: float, near: float, far: float) -> Tensor:
    """(4, 4): looks along -z; `zoom` is 1 / tan of half the angle of view."""
    depth, offset = -(far + near) / (far - near), -2 * far * near / (far - near)
    return torch.tensor([[zoom, 0, 0, 0], [0, zoom, 0, 0], [0, 0, depth, offset], [0, 0, -1, 0]])


def rotations(count: int, generator: torch.Generator) -> Tensor:
    """(count, 3, 3): evenly over all rotations, by unit quaternions."""
    q = torch.nn.functional.normalize(torch.randn(count, 4, generator=generator), dim=-1)
    w, x, y, z = q.unbind(-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
    ]
    return torch.stack(rows, -2)


def turned(pitch: float, yaw: float) -> Tensor:
    """(1, 3, 3): about the upright axis first, then about the horizontal one; radians."""
    a, b = math.cos(yaw), math.sin(yaw)
    c, d = math.cos(pitch), math.sin(pitch)
    return torch.tensor([[1, 0, 0], [0, c, -d], [0, d, c]])[None] @ torch.tensor([[a, 0, b], [0, 1, 0], [-b, 0, a]])


def clip_space(points: Tensor, rotation: Tensor, distance: Tensor, lens: Tensor) -> Tensor:
    """(N, V, 4): points (V, 3) turned by rotation (N, 3, 3) and moved `distance` (N,) away from the eye."""
    turned = points @ rotation.transpose(1, 2)
    away = torch.zeros_like(turned)
    away[..., 2] = distance[:, None]
    moved = torch.nn.functional.pad(turned - away, (0, 1), value=1.0)
    return moved @ lens.T
