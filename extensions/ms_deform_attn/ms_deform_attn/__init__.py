"""Multi-scale deformable attention for PyTorch, on CPU and CUDA."""

from __future__ import annotations

from ._library import HAS_CUDA
from .attention import MSDeformAttn
from .interfaces import (
    MSDeformAttnFunction,
    MultiScaleDeformableAttention,
    MultiScaleDeformableAttnFunction,
)
from .ops import ms_deform_attn

__version__ = "0.1.0"

__all__ = [
    "HAS_CUDA",
    "MSDeformAttn",
    "MSDeformAttnFunction",
    "MultiScaleDeformableAttention",
    "MultiScaleDeformableAttnFunction",
    "ms_deform_attn",
]
