"""Coverage at the outlines of surfaces: it makes visibility differentiable in the vertex positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arguments import (
    alert_not_deterministic,
    check,
    check_build,
    check_floating,
    check_index,
    check_like,
    check_shape,
    refuse_second_derivative,
)

_OP = "antialias"


def _check_arguments(color: Tensor, rast: Tensor, pos: Tensor, tri: Tensor, topology: Tensor) -> None:
    check_floating(_OP, "color", color)
    check_like(_OP, "color", color, rast=rast, pos=pos)
    check_index(_OP, "tri", tri, color)
    check_index(_OP, "topology", topology, color)
    check_shape(_OP, "tri", tri, (None, 3), "(T, 3)")
    check_shape(_OP, "color", color, (None, None, None, None), "(N, h, w, C)")
    batch, height, width, _ = color.shape
    check_shape(_OP, "rast", rast, (batch, height, width, 4), "(N, h, w, 4) with the (N, h, w) of color")
    check(
        _OP,
        (pos.dim() == 2 and pos.shape[1] == 4) or (pos.dim() == 3 and pos.shape[0] == batch and pos.shape[2] == 4),
        lambda: f"pos must have shape (V, 4) or (N, V, 4) with N = {batch}, got {tuple(pos.shape)}",
    )
    check_shape(_OP, "topology", topology, tri.shape, "(T, 3), that of tri")


@torch.library.register_fake("diffrast::antialias")
def _fake(
    color: Tensor, rast: Tensor, pos: Tensor, tri: Tensor, topology: Tensor, pos_gradient_boost: float = 1.0
) -> Tensor:
    _check_arguments(color, rast, pos, tri, topology)
    return color.new_empty(color.shape)


@torch.library.register_fake("diffrast::antialias_backward")
def _fake_backward(
    color: Tensor,
    rast: Tensor,
    pos: Tensor,
    tri: Tensor,
    topology: Tensor,
    pos_gradient_boost: float,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor]:
    _check_arguments(color, rast, pos, tri, topology)
    check_like(_OP, "color", color, grad_out=grad_out)
    check_shape(_OP, "grad_out", grad_out, color.shape, "(N, h, w, C), that of color")
    # new_empty and not empty_like: the kernels answer contiguous tensors whatever they were given.
    return color.new_empty(color.shape), pos.new_empty(pos.shape)


@torch.library.register_fake("diffrast::antialias_topology")
def _fake_topology(tri: Tensor) -> Tensor:
    check_index("antialias_topology", "tri", tri, tri)
    check_shape("antialias_topology", "tri", tri, (None, 3), "(T, 3)")
    return tri.new_empty(tri.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.pos_gradient_boost = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    if ctx.needs_input_grad[2]:
        alert_not_deterministic(_OP, grad_out)
    by_color, by_pos = torch.ops.diffrast.antialias_backward(*tensors, ctx.pos_gradient_boost, grad_out)
    return by_color, None, by_pos, None, None, None


torch.library.register_autograd("diffrast::antialias", _gradients, setup_context=_setup_context)
refuse_second_derivative(_OP)


def antialias_construct_topology_hash(tri: Tensor) -> Tensor:
    """The table of edges that `antialias` needs, for a mesh whose triangles stay the same over many calls.

    Args:
        tri: (T, 3) int32. Vertices that triangles share must share an index, else their edge counts as an outline.

    Returns:
        (T, 3) int32, a plain tensor on the device of tri. Half-edge 3t + k lies opposite corner k of triangle t; its
        entry is the next half-edge with the same two vertices, round in a ring. The same bits in every run.

    Raises:
        RuntimeError: tri has a wrong dtype or shape.

    """
    check_build(_OP, tri)
    return torch.ops.diffrast.antialias_topology(tri)  # type: ignore[no-any-return]


def antialias(
    color: Tensor,
    rast: Tensor,
    pos: Tensor,
    tri: Tensor,
    topology_hash: Tensor | None = None,
    pos_gradient_boost: float = 1.0,
) -> Tensor:
    """Mix the colours of neighbouring pixels where an outline passes between them.

    For each horizontal and vertical pair of pixels that show different triangles, the nearer one (by z/w) is looked
    at: if it has an edge that crosses the segment between the two pixel centres, and the surface ends or folds back
    at this edge, then the place of the crossing says how much of one pixel the other's colour covers. A crossing
    halfway changes nothing; one at a pixel's centre gives half of that pixel away.

    Args:
        color: (N, h, w, C), f32, on the CPU also f64.
        rast: (N, h, w, 4) from `rasterize`.
        pos: clip-space positions as given to `rasterize`: (N, V, 4), or (V, 4) in range mode.
        tri: (T, 3) int32.
        topology_hash: from `antialias_construct_topology_hash(tri)`; made anew in each call without.
        pos_gradient_boost: factor on the gradient of pos. It does not change the result.

    Returns:
        (N, h, w, C), contiguous.

    Gradients go to color and to x, y, w of pos, once differentiable. On CUDA the gradient of pos is summed by atomics,
    in an order that may change from run to run; the result and the gradient of color are the same in every run.

    Raises:
        RuntimeError: a dtype, shape or device is wrong; the message names the argument.

    """
    check_build(_OP, color)
    topology = antialias_construct_topology_hash(tri) if topology_hash is None else topology_hash
    return torch.ops.diffrast.antialias(color, rast, pos, tri, topology, pos_gradient_boost)  # type: ignore[no-any-return]
