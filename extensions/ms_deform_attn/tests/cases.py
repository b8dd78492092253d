"""Inputs, and the same function in plain PyTorch."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

TORCH = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())

SHAPES = ((6, 4), (3, 2))


class Case(NamedTuple):
    """The operator's five tensors, in order."""

    value: Tensor
    spatial_shapes: Tensor
    level_start_index: Tensor
    sampling_loc: Tensor
    attn_weight: Tensor


def make_case(
    *,
    batch: int = 1,
    heads: int = 2,
    channels: int = 2,
    queries: int = 2,
    points: int = 2,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    dtype: torch.dtype = torch.float64,
    loc_dtype: Optional[torch.dtype] = None,
    device: str = "cpu",
    scale: float = 0.01,
    spread: float = 1.0,
    requires_grad: bool = False,
    seed: int = 3,
) -> Case:
    """Upstream's test data by default. spread > 1 sends some locations outside the levels."""
    random = torch.Generator().manual_seed(seed)
    levels = len(shapes)
    sizes = [height * width for height, width in shapes]
    starts = [sum(sizes[:level]) for level in range(levels)]
    value = torch.rand(batch, sum(sizes), heads, channels, generator=random, dtype=torch.float64) * scale
    loc = torch.rand(batch, queries, heads, levels, points, 2, generator=random, dtype=torch.float64)
    loc = (loc - 0.5) * spread + 0.5
    weight = torch.rand(batch, queries, heads, levels, points, generator=random, dtype=torch.float64) + 1e-5
    weight = weight / weight.sum((-1, -2), keepdim=True)
    loc_dtype = loc_dtype or dtype

    def leaf(tensor: Tensor, to: torch.dtype) -> Tensor:
        return tensor.to(device, to).requires_grad_(requires_grad)

    return Case(
        leaf(value, dtype),
        torch.tensor(shapes, dtype=torch.int64, device=device).reshape(levels, 2),
        torch.tensor(starts, dtype=torch.int64, device=device),
        leaf(loc, loc_dtype),
        leaf(weight, loc_dtype),
    )


def floating(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    return case.value, case.sampling_loc, case.attn_weight


def reference(case: Case) -> Tensor:
    """grid_sample per level, in the dtype given."""
    value, spatial_shapes, starts, loc, weight = case
    batch, _, heads, channels = value.shape
    queries, points = loc.shape[1], loc.shape[4]
    out = value.new_zeros(batch * heads, channels, queries)
    for level, (height, width) in enumerate(spatial_shapes.tolist()):
        start = int(starts[level])
        image = value[:, start : start + height * width].permute(0, 2, 3, 1)
        image = image.reshape(batch * heads, channels, height, width)
        grid = (2 * loc[:, :, :, level] - 1).transpose(1, 2).reshape(batch * heads, queries, points, 2)
        samples = F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        share = weight[:, :, :, level].transpose(1, 2).reshape(batch * heads, 1, queries, points)
        out = out + (samples * share).sum(-1)
    return out.reshape(batch, heads * channels, queries).transpose(1, 2)


def in_double(case: Case) -> Case:
    """The same numbers in f64, as leaves of their own."""
    value, loc, weight = (tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in floating(case))
    return Case(value, case.spatial_shapes, case.level_start_index, loc, weight)


def errors(have: Tensor, want: Tensor) -> tuple[float, float]:
    """Largest absolute and relative difference, as mmcv's tests take them."""
    difference = (have - want).abs()
    return difference.max().item(), (difference / want.abs()).max().item()
