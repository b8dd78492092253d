"""Texture sampling: shapes without data, gradients, the function to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._arguments import (
    alert_not_deterministic,
    check,
    check_build,
    check_like,
    check_shape,
    refuse_second_derivative,
)
from .mipmaps import MipStack, check_dimensions, check_tex, mip_stack, texels_below, texture_construct_mip

__all__ = ["texture", "texture_construct_mip"]

_OP = "texture"
_FILTERS = ("nearest", "linear", "linear-mipmap-nearest", "linear-mipmap-linear")
_BOUNDARIES = ("wrap", "clamp", "zero", "cube")


@torch.library.register_fake("diffrast::texture")
def _fake(
    tex: Tensor,
    mip: Tensor | None,
    uv: Tensor,
    uv_da: Tensor | None,
    mip_level_bias: Tensor | None,
    filter_mode: str,
    boundary_mode: str,
    levels: int,
) -> Tensor:
    cube, axes = (True, 3) if boundary_mode == "cube" else (False, 2)
    check(_OP, filter_mode in _FILTERS, lambda: f"filter_mode must be one of {', '.join(_FILTERS)}, got {filter_mode}")
    check(
        _OP,
        boundary_mode in _BOUNDARIES,
        lambda: f"boundary_mode must be one of {', '.join(_BOUNDARIES)}, got {boundary_mode}",
    )
    check_tex(_OP, tex, cube, levels)
    check_like(_OP, "tex", tex, uv=uv)
    check_shape(_OP, "uv", uv, (None, None, None, axes), f"(N, h, w, {axes})")
    batch, height, width, _ = uv.shape
    check(
        _OP,
        tex.shape[0] == 1 or tex.shape[0] == batch,
        lambda: f"tex must have a batch of 1 or that of uv, {batch}, got {tuple(tex.shape)}",
    )
    if mip is not None:
        check_like(_OP, "tex", tex, mip=mip)
        texels = texels_below(tex, levels)
        check_shape(
            _OP, "mip", mip, (tex.shape[0], texels, tex.shape[-1]), "(N of tex, texels of all levels, C of tex)"
        )
    check(_OP, mip is not None or levels == 0, lambda: "mip must be given where there are levels")
    if uv_da is not None:
        check_like(_OP, "tex", tex, uv_da=uv_da)
        check_shape(_OP, "uv_da", uv_da, (batch, height, width, 2 * axes), f"(N, h, w, {2 * axes}) beside uv")
    if mip_level_bias is not None:
        check_like(_OP, "tex", tex, mip_level_bias=mip_level_bias)
        check_shape(_OP, "mip_level_bias", mip_level_bias, (batch, height, width), "(N, h, w) beside uv")
    check(
        _OP,
        "mipmap" in filter_mode or (mip is None and uv_da is None and mip_level_bias is None),
        lambda: "mip, uv_da and mip_level_bias must be None without mipmaps",
    )
    return uv.new_empty((batch, height, width, tex.shape[-1]))


@torch.library.register_fake("diffrast::texture_backward")
def _fake_backward(
    tex: Tensor,
    mip: Tensor | None,
    uv: Tensor,
    uv_da: Tensor | None,
    mip_level_bias: Tensor | None,
    filter_mode: str,
    boundary_mode: str,
    levels: int,
    grad_out: Tensor,
    texels: bool,
    coordinates: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    out = _fake(tex, mip, uv, uv_da, mip_level_bias, filter_mode, boundary_mode, levels)
    check_like(_OP, "tex", tex, grad_out=grad_out)
    check_shape(_OP, "grad_out", grad_out, out.shape, "(N, h, w, C)")

    def like(tensor: Tensor | None, asked: bool) -> Tensor:
        # new_empty and not empty_like: the kernels answer contiguous tensors whatever they were given.
        return tex.new_empty(tensor.shape if tensor is not None and asked else (0,))

    return (
        like(tex, texels),
        like(mip, texels),
        like(uv, coordinates),
        like(uv_da, coordinates),
        like(mip_level_bias, coordinates),
    )


def _save_texture(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.modes = inputs[5:]


def _texture_gradients(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    needed = ctx.needs_input_grad
    texels, coordinates = needed[0] or needed[1], any(needed[2:5])
    if texels:
        alert_not_deterministic(_OP, inputs[0])
    grads = torch.ops.diffrast.texture_backward(*inputs, *ctx.modes, grad_out, texels, coordinates)
    return (*(grad if need else None for grad, need in zip(grads, needed)), None, None, None)


torch.library.register_autograd("diffrast::texture", _texture_gradients, setup_context=_save_texture)
refuse_second_derivative(_OP)


def texture(
    tex: Tensor,
    uv: Tensor,
    uv_da: Tensor | None = None,
    mip_level_bias: Tensor | None = None,
    mip: MipStack | Sequence[Tensor] | None = None,
    filter_mode: str = "auto",
    boundary_mode: str = "wrap",
    max_mip_level: int | None = None,
) -> Tensor:
    r"""Sample a texture at the coordinates of each pixel.

    A coordinate (s, t) = (0, 0) is the corner of the first texel of row 0, (1, 1) that of the last; the centre of
    texel i of a side of n lies at (i + ½) / n. Cube maps are oriented as in OpenGL: faces +x, −x, +y, −y, +z, −z.

    The mip level is isotropic, chosen by the longer axis of the pixel's footprint in the texture (Laine et al. 2020,
    arXiv 2011.03277): with J the derivatives of (s·W, t·H) along the screen's X and Y, a 2 x 2 matrix,

    .. math::
        level = clamp(\log_2 \sigma_{max}(J) + bias,\; 0,\; last)
        \qquad \sigma_{max}^2 = \tfrac12 \left(E + F + \sqrt{(E - F)^2 + 4 G^2}\right)

    where E and F are the squared lengths of the rows of J and G is their product. A cube's J is that of (s, t) on the
    face the direction meets. A level that is NaN counts as 0.

    Args:
        tex: (N, H, W, C) or (1, H, W, C); for cube maps (N|1, 6, S, S, C). f32; f64 on the CPU. Any C, any strides.
        uv: (N, h, w, 2), (s, t); for cube maps (N, h, w, 3), directions of any length.
        uv_da: (N, h, w, 4), (ds/dX, ds/dY, dt/dX, dt/dY) a pixel; for cube maps (N, h, w, 6), those of x, y and z.
            As :func:`interpolate` gives it.
        mip_level_bias: (N, h, w), added to the level; without uv_da it is the level.
        mip: what :func:`texture_construct_mip` made, or a list of tensors, the levels below tex, each shaped as tex
            with its sides halved once more; they get gradients of their own. None: built here, from tex.
        filter_mode: 'nearest', 'linear', 'linear-mipmap-nearest' (the nearest level, filtered within),
            'linear-mipmap-linear' (between two levels), or 'auto': the last if uv_da or mip_level_bias is given, else
            'linear'. The modes without mipmaps ignore uv_da, mip_level_bias and mip.
        boundary_mode: 'wrap', 'clamp' to the border texels, 'zero' outside, or 'cube': tex is a cube map, filtered
            across edges and corners.
        max_mip_level: the last level to build and use; None: down to 1 x 1, or what mip holds.

    Returns:
        (N, h, w, C), contiguous. A coordinate that is not finite, or a direction of length 0, gives 0 and no gradient.

    Gradients go to tex (through its mips) or to tex and the levels given, and to uv; 'linear-mipmap-linear' alone has
    gradients to uv_da and mip_level_bias, where the level is not clamped. Once differentiable. On CUDA the gradients
    of texels are summed by atomics, in an order that may change from run to run; on the CPU they are the same always.

    Raises:
        ValueError: an unknown mode, mipmaps without uv_da and mip_level_bias, a negative max_mip_level, or a side that
            cannot be halved because it is odd and not 1.
        RuntimeError: a dtype, shape or device is wrong; the message names the argument.
    """
    if filter_mode == "auto":
        filter_mode = "linear" if uv_da is None and mip_level_bias is None else "linear-mipmap-linear"
    if filter_mode not in _FILTERS:
        raise ValueError(
            f"diffrast.texture: filter_mode must be auto or one of {', '.join(_FILTERS)}, got {filter_mode}"
        )
    if boundary_mode not in _BOUNDARIES:
        raise ValueError(
            f"diffrast.texture: boundary_mode must be one of {', '.join(_BOUNDARIES)}, got {boundary_mode}"
        )
    if max_mip_level is not None and max_mip_level < 0:
        raise ValueError(f"diffrast.texture: max_mip_level must be 0 or more, got {max_mip_level}")
    check_build(_OP, tex)
    if "mipmap" not in filter_mode:
        return torch.ops.diffrast.texture(tex, None, uv, None, None, filter_mode, boundary_mode, 0)
    if uv_da is None and mip_level_bias is None:
        raise ValueError(f"diffrast.texture: filter_mode {filter_mode} needs uv_da or mip_level_bias")
    cube = boundary_mode == "cube"
    check_dimensions(tex, cube)
    stack = mip_stack(tex, mip, cube, max_mip_level)
    packed = stack.packed if stack.levels else None
    return torch.ops.diffrast.texture(tex, packed, uv, uv_da, mip_level_bias, filter_mode, boundary_mode, stack.levels)
