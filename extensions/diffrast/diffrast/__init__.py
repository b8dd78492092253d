"""Differentiable rasterization for PyTorch, on CPU and CUDA, with the Python face of nvdiffrast."""

from __future__ import annotations

from ._library import HAS_CUDA
from .antialiasing import antialias, antialias_construct_topology_hash
from .interpolation import interpolate
from .rasterization import DepthPeeler, RasterizeCudaContext, RasterizeGLContext, rasterize
from .texturing import texture, texture_construct_mip

__version__ = "0.1.0"

__all__ = [
    "HAS_CUDA",
    "DepthPeeler",
    "RasterizeCudaContext",
    "RasterizeGLContext",
    "antialias",
    "antialias_construct_topology_hash",
    "interpolate",
    "rasterize",
    "texture",
    "texture_construct_mip",
]
