"""Deformable convolution in plain PyTorch: `grid_sample` for each tap of the kernel, then a matrix product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def deform_conv2d(
    image: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    """Version 2 (arXiv 1811.11168), section 3; without the mask version 1. Differentiable; float64 inside.

    Args:
        image: (N, C, H, W).
        weight: (O, C / groups, R, S).
        offset: (N, offset_groups * R * S * 2, h, w), (y, x) of each tap; a channel belongs to the group of its share.
        mask: (N, offset_groups * R * S, h, w), a factor for each tap; unread without use_mask.
        bias: (O,).

    Returns:
        (N, O, h, w).
    """
    dtype = image.dtype
    image, weight, offset, mask, bias = (one.double() for one in (image, weight, offset, mask, bias))
    batch, channels, height, width = image.shape
    outputs, _, rows, columns = weight.shape
    high, wide = offset.shape[2:]
    if batch == 0:
        nothing = 0.0 * (image.sum() + weight.sum() + offset.sum() + mask.sum() + bias.sum())
        return nothing.expand(0, outputs, high, wide).to(dtype)
    taps = rows * columns
    tap = torch.arange(taps, device=image.device)
    top = torch.arange(high, device=image.device)[:, None] * stride_h - pad_h
    left = torch.arange(wide, device=image.device) * stride_w - pad_w
    offset = offset.reshape(batch, offset_groups, taps, 2, high, wide)
    y = offset[:, :, :, 0] + (tap // columns * dilation_h)[:, None, None] + top
    x = offset[:, :, :, 1] + (tap % columns * dilation_w)[:, None, None] + left
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    samples = F.grid_sample(
        image.reshape(batch * offset_groups, channels // offset_groups, height, width),
        grid.reshape(batch * offset_groups, taps * high, wide, 2),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    ).reshape(batch, offset_groups, channels // offset_groups, taps, high, wide)
    if use_mask:
        samples = samples * mask.reshape(batch, offset_groups, 1, taps, high, wide)
    samples = samples.reshape(batch, groups, channels // groups, taps, high, wide)
    kernels = weight.reshape(groups, outputs // groups, channels // groups, taps)
    out = torch.einsum("ngcthw,goct->ngohw", samples, kernels).reshape(batch, outputs, high, wide)
    return (out + bias[:, None, None]).to(dtype)
