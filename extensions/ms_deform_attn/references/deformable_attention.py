"""Multi-scale deformable attention in plain PyTorch: `grid_sample` for each level, summed in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    precision: torch.dtype = torch.float64,
) -> Tensor:
    """The op's definition, differentiable. Equation 3 of Deformable DETR (arXiv 2010.04159).

    Args:
        value: (N, S, M, D), the rows of all levels one after the other.
        spatial_shapes: (L, 2) int64, (H, W) of each level.
        level_start_index: (L,) int64, first row of each level.
        sampling_loc: (N, Lq, M, L, P, 2) as (x, y); [0, 1] is inside the level.
        attn_weight: (N, Lq, M, L, P).
        precision: dtype of the arithmetic; the answer has the dtype of value.

    Returns:
        (N, Lq, M*D).
    """
    batch, _, heads, channels = value.shape
    queries, points = sampling_loc.shape[1], sampling_loc.shape[4]
    wide, loc, weight = value.to(precision), sampling_loc.to(precision), attn_weight.to(precision)
    sums = []
    for level, (height, width) in enumerate(spatial_shapes.tolist()):
        if 0 in (batch, heads, channels, queries, points, height, width):
            continue  # grid_sample refuses the empty
        start = int(level_start_index[level])
        image = wide[:, start : start + height * width].permute(0, 2, 3, 1)
        image = image.reshape(batch * heads, channels, height, width)
        grid = (2.0 * loc[:, :, :, level] - 1.0).transpose(1, 2).reshape(batch * heads, queries, points, 2)
        samples = F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        share = weight[:, :, :, level].transpose(1, 2).reshape(batch * heads, 1, queries, points)
        sums.append((samples * share).sum(-1))
    if sums:
        out = torch.stack(sums).sum(0)
    else:
        # Zero, but hanging on every input: gradients are zeros and not None.
        out = wide.new_zeros(batch * heads, channels, queries) + 0.0 * (wide.sum() + loc.sum() + weight.sum())
    return out.reshape(batch, heads * channels, queries).transpose(1, 2).contiguous().to(value.dtype)


def backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Autograd through `forward`: gradients of value, sampling_loc and attn_weight for grad_output (N, Lq, M*D)."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (value, sampling_loc, attn_weight)]
        out = forward(leaves[0], spatial_shapes, level_start_index, leaves[1], leaves[2])
        grad_value, grad_loc, grad_weight = torch.autograd.grad(out, leaves, grad_output.to(out.dtype))
    return grad_value, grad_loc, grad_weight
