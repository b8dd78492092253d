"""The same function under the names and signatures other projects call it by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from torch import Tensor, nn

from .ops import ms_deform_attn


class MSDeformAttnFunction:
    """Deformable-DETR's name: ``MSDeformAttnFunction.apply(...)``.

    Arguments, result and errors are those of :func:`ms_deform_attn.ms_deform_attn`. Not an
    ``autograd.Function`` itself: the operator carries its gradient, so that it can be compiled
    and exported.
    """

    @staticmethod
    def apply(
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int = 64,
        value_spatial_shapes_list: Optional[Sequence[Sequence[int]]] = None,
    ) -> Tensor:
        """(N, S, M, D), (L, 2), (L,), (N, Lq, M, L, P, 2), (N, Lq, M, L, P) -> (N, Lq, M*D)."""
        return ms_deform_attn(
            value,
            value_spatial_shapes,
            value_level_start_index,
            sampling_locations,
            attention_weights,
            im2col_step,
            value_spatial_shapes_list,
        )


#: mmcv's name for the same call.
MultiScaleDeformableAttnFunction = MSDeformAttnFunction


class MultiScaleDeformableAttention(nn.Module):
    """The layer that Hugging Face transformers takes from its kernel hub: no parameters."""

    def forward(
        self,
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_spatial_shapes_list: Optional[Sequence[Sequence[int]]],
        level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int = 64,
    ) -> Tensor:
        """As :func:`ms_deform_attn.ms_deform_attn`, arguments in transformers' order."""
        return ms_deform_attn(
            value,
            value_spatial_shapes,
            level_start_index,
            sampling_locations,
            attention_weights,
            im2col_step,
            value_spatial_shapes_list,
        )
