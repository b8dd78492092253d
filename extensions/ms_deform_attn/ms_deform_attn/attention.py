"""The attention module around the operator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor, nn

from .ops import ms_deform_attn


class MSDeformAttn(nn.Module):
    """Multi-scale deformable attention module of Deformable DETR (arXiv 2010.04159, section 4.1).

    Parameter names and shapes are upstream's, so its checkpoints load.

    Args:
        d_model: width of queries and values; a multiple of n_heads.
        n_levels: feature levels, L.
        n_heads: attention heads, M. d_model / n_heads channels each; a power of two is fastest,
            any other warns.
        n_points: sampling points per head and level, P.

    Raises:
        ValueError: d_model is no multiple of n_heads.
    """

    def __init__(self, d_model: int = 256, n_levels: int = 4, n_heads: int = 8, n_points: int = 4) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model must be a multiple of n_heads, but got {d_model} and {n_heads}")
        head_dim = d_model // n_heads
        if head_dim & (head_dim - 1):
            warnings.warn(
                f"MSDeformAttn: d_model / n_heads = {head_dim} is not a power of 2; it works, but GPU lanes "
                "stay idle",
                stacklevel=2,
            )
        self.im2col_step = 64  # upstream's attribute; ignored
        self.d_model = d_model
        self.n_levels = n_levels
        self.n_heads = n_heads
        self.n_points = n_points

        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Start as the paper does (appendix A.4): heads look in M directions, point p at p+1 pixels."""
        angle = torch.arange(self.n_heads, dtype=torch.float32) * (2.0 * math.pi / self.n_heads)
        direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
        direction = direction / direction.abs().max(dim=-1, keepdim=True).values
        distance = torch.arange(1, self.n_points + 1, dtype=torch.float32)
        bias = direction[:, None, None, :] * distance[None, None, :, None]
        bias = bias.expand(self.n_heads, self.n_levels, self.n_points, 2)
        nn.init.zeros_(self.sampling_offsets.weight)
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(bias.reshape(-1))
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for linear in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: Tensor,
        input_level_start_index: Tensor,
        input_padding_mask: Optional[Tensor] = None,
        input_spatial_shapes_list: Optional[Sequence[Sequence[int]]] = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: (N, Lq, d_model).
            reference_points: (N, Lq, L, 2) as (x, y) in [0, 1] of the unpadded image, or
                (N, Lq, L, 4) as boxes (x, y, w, h), centre and size.
            input_flatten: (N, S, d_model), the levels' features one after the other.
            input_spatial_shapes: (L, 2) int64, (H, W) of each level.
            input_level_start_index: (L,) int64, first row of each level.
            input_padding_mask: (N, S) bool, True where input_flatten is padding: read as zero.
            input_spatial_shapes_list: input_spatial_shapes as Python integers, if at hand.

        Returns:
            (N, Lq, d_model).

        Raises:
            ValueError: reference_points has a last dimension other than 2 or 4.
            RuntimeError: as :func:`ms_deform_attn.ms_deform_attn`.
        """
        batch, queries, _ = query.shape
        rows = input_flatten.shape[1]
        points = (batch, queries, self.n_heads, self.n_levels, self.n_points)

        value = self.value_proj(input_flatten)
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask[..., None], 0.0)
        value = value.reshape(batch, rows, self.n_heads, self.d_model // self.n_heads)

        # Under autocast the offsets come in 16 bits; the locations made of them must not stay there.
        offsets = self.sampling_offsets(query).reshape(*points, 2)
        offsets = offsets.to(torch.promote_types(offsets.dtype, torch.float32))
        weights = self.attention_weights(query).reshape(*points[:3], self.n_levels * self.n_points)
        weights = weights.softmax(dim=-1).reshape(points)

        centre = reference_points[:, :, None, :, None, :2]
        if reference_points.shape[-1] == 2:
            width_height = input_spatial_shapes.flip(-1)[:, None, :]  # (L, 1, 2)
            locations = centre + offsets / width_height
        elif reference_points.shape[-1] == 4:
            size = reference_points[:, :, None, :, None, 2:]
            locations = centre + offsets / self.n_points * size * 0.5
        else:
            raise ValueError(
                f"reference_points must have 2 or 4 as its last dimension, got {tuple(reference_points.shape)}"
            )
        attended = ms_deform_attn(
            value,
            input_spatial_shapes,
            input_level_start_index,
            locations,
            weights,
            self.im2col_step,
            input_spatial_shapes_list,
        )
        return self.output_proj(attended)
