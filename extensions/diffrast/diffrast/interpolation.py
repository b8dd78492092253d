"""Vertex attributes at the pixels of a raster, with their screen derivatives where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

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

_OP = "interpolate"


def _check_arguments(
    attr: Tensor, rast: Tensor, tri: Tensor, rast_db: Tensor | None, diff_attrs: Sequence[int]
) -> None:
    check_floating(_OP, "attr", attr)
    check_like(_OP, "attr", attr, rast=rast)
    check_index(_OP, "tri", tri, attr)
    check_shape(_OP, "rast", rast, (None, None, None, 4), "(N, h, w, 4)")
    check_shape(_OP, "tri", tri, (None, 3), "(T, 3)")
    batch, height, width, _ = rast.shape
    check(
        _OP,
        attr.dim() == 2 or (attr.dim() == 3 and (attr.shape[0] == 1 or attr.shape[0] == batch)),
        lambda: f"attr must have shape (V, A), (1, V, A) or (N, V, A) with N = {batch}, got {tuple(attr.shape)}",
    )
    if rast_db is not None:
        check_like(_OP, "attr", attr, rast_db=rast_db)
        check_shape(_OP, "rast_db", rast_db, (batch, height, width, 4), "(N, h, w, 4), that of rast")
    check(_OP, not diff_attrs or rast_db is not None, lambda: "diff_attrs needs rast_db")
    count = attr.shape[-1]
    for index in diff_attrs:
        check(_OP, 0 <= index < count, lambda index=index: f"diff_attrs names attribute {index}, attr has {count}")  # type: ignore[misc]


@torch.library.register_fake("diffrast::interpolate")
def _fake(
    attr: Tensor, rast: Tensor, tri: Tensor, rast_db: Tensor | None, diff_attrs: Sequence[int]
) -> tuple[Tensor, Tensor]:
    _check_arguments(attr, rast, tri, rast_db, diff_attrs)
    raster = rast.shape[:3]
    return attr.new_empty((*raster, attr.shape[-1])), attr.new_empty((*raster, 2 * len(diff_attrs)))


@torch.library.register_fake("diffrast::interpolate_backward")
def _fake_backward(
    attr: Tensor,
    rast: Tensor,
    tri: Tensor,
    rast_db: Tensor | None,
    diff_attrs: Sequence[int],
    grad_out: Tensor,
    grad_out_da: Tensor,
    to_attr: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_arguments(attr, rast, tri, rast_db, diff_attrs)
    check_like(_OP, "attr", attr, grad_out=grad_out, grad_out_da=grad_out_da)
    raster = rast.shape[:3]
    check_shape(_OP, "grad_out", grad_out, (*raster, attr.shape[-1]), "(N, h, w, A)")
    check_shape(_OP, "grad_out_da", grad_out_da, (*raster, 2 * len(diff_attrs)), "(N, h, w, 2 * len(diff_attrs))")
    # new_empty and not empty_like: the kernels answer contiguous tensors whatever they were given.
    db = attr.new_empty((*raster, 0 if rast_db is None else 4))
    return attr.new_empty(attr.shape if to_attr else (0,)), attr.new_empty(rast.shape), db


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    attr, rast, tri, rast_db, ctx.diff_attrs = inputs
    ctx.save_for_backward(attr, rast, tri, rast_db)


def _gradients(ctx: Any, grad_out: Tensor, grad_out_da: Tensor) -> tuple[Tensor | None, ...]:
    attr, rast, tri, rast_db = ctx.saved_tensors
    to_attr = ctx.needs_input_grad[0]
    if to_attr:
        alert_not_deterministic(_OP, attr)
    by_attr, by_rast, by_db = torch.ops.diffrast.interpolate_backward(
        attr, rast, tri, rast_db, ctx.diff_attrs, grad_out, grad_out_da, to_attr
    )
    return by_attr if to_attr else None, by_rast, None, None if rast_db is None else by_db, None


torch.library.register_autograd("diffrast::interpolate", _gradients, setup_context=_setup_context)
refuse_second_derivative(_OP)


def interpolate(
    attr: Tensor,
    rast: Tensor,
    tri: Tensor,
    rast_db: Tensor | None = None,
    diff_attrs: Literal["all"] | Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Interpolate vertex attributes at the pixels of a raster.

    With the corners a0, a1, a2 of a pixel's triangle and its (u, v),

    .. math::
        out = u\,a_0 + v\,a_1 + (1 - u - v)\,a_2, \qquad
        \partial out / \partial X = (\partial u / \partial X)(a_0 - a_2) + (\partial v / \partial X)(a_1 - a_2)

    and zero where nothing was drawn.

    Args:
        attr: A attributes of V vertices: (V, A) or (1, V, A) for all images alike, or (N, V, A); f32, on the CPU
            also f64.
        rast: (N, h, w, 4) from `rasterize`: u, v, z/w, triangle id.
        tri: (T, 3) int32, the vertices of each triangle.
        rast_db: (N, h, w, 4) from `rasterize`: du/dX, du/dY, dv/dX, dv/dY. Needed with diff_attrs.
        diff_attrs: the attributes whose screen derivatives are wanted, as indices or "all". Indices must be
            Python integers; "all" makes A a constant of a traced graph.

    Returns:
        out: (N, h, w, A).
        out_da: (N, h, w, 2·len(diff_attrs)), dA/dX and dA/dY of each selected attribute side by side, per pixel.
            The last axis is empty if none was asked for.

    Gradients go to attr, to u and v of rast, and to rast_db, once differentiable. On CUDA the gradient of attr is
    summed by atomics, in an order that may change from run to run. A triangle id or a vertex that the mesh does not
    have counts as nothing drawn.

    Raises:
        RuntimeError: a dtype, shape, device or attribute index is wrong; the message names the argument.

    """
    check_build(_OP, attr)
    if diff_attrs is None:
        selected: list[int] = []
    elif isinstance(diff_attrs, str):
        if diff_attrs != "all":
            raise RuntimeError(
                f"diffrast.interpolate: diff_attrs must be a list of indices or 'all', got {diff_attrs!r}"
            )
        selected = list(range(attr.shape[-1]))
    else:
        selected = list(diff_attrs)
    out, out_da = torch.ops.diffrast.interpolate(attr, rast, tri, rast_db, selected)
    return out, out_da
