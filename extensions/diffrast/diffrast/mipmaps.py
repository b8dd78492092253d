"""Mip stacks: the levels of a texture below its base, packed into one tensor, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._arguments import check, check_build, check_floating, check_shape, refuse_second_derivative


_MAX_SIDE = 1 << 24


class MipStack(NamedTuple):
    """The mip levels of a texture, without its base; made by :func:`texture_construct_mip`.

    Attributes:
        packed: (N, texels, C): the levels behind each other, the finest first, each with its rows (cube: faces, then
            rows) in order. Carries gradients back to the texture it was made from.
        levels: how many there are.
    """

    packed: Tensor
    levels: int


def _halved(side: int, level: int) -> int:
    for _ in range(level):
        side = 1 if side == 1 else side // 2
    return side


def _texels_of(height: int, width: int, cube: bool, levels: int) -> int:
    """Length of a pack with so many levels."""
    faces = 6 if cube else 1
    return sum(faces * _halved(height, level) * _halved(width, level) for level in range(1, levels + 1))


def texels_below(tex: Tensor, levels: int) -> int:
    return _texels_of(tex.shape[-3], tex.shape[-2], tex.dim() == 5, levels)


def _count_levels(tex: Tensor, max_mip_level: int | None) -> int:
    """How many levels below the base: down to 1 x 1, or to max_mip_level."""
    height, width = tex.shape[-3], tex.shape[-2]
    levels = 0
    while (height > 1 or width > 1) and (max_mip_level is None or levels < max_mip_level):
        if (height > 1 and height % 2) or (width > 1 and width % 2):
            raise ValueError(
                f"diffrast.texture: tex of {tex.shape[-3]} x {tex.shape[-2]} has no mip level {levels + 1}: "
                f"a side of level {levels}, {height} x {width}, is odd; sides must be even or 1.\n"
                f"hint: pad or resize the texture, or stop at max_mip_level={levels}"
            )
        height, width, levels = _halved(height, 1), _halved(width, 1), levels + 1
    return levels


def _can_halve(height: int, width: int, levels: int) -> bool:
    """Whether so many levels can be made: no odd side but 1 is halved, and the last step halves something."""
    for _ in range(levels):
        if (height == 1 and width == 1) or (height > 1 and height % 2) or (width > 1 and width % 2):
            return False
        height, width = _halved(height, 1), _halved(width, 1)
    return levels >= 0


def check_tex(op: str, tex: Tensor, cube: bool, levels: int) -> None:
    check_floating(op, "tex", tex)
    if cube:
        check_shape(op, "tex", tex, (None, 6, None, None, None), "(N, 6, S, S, C)")
        check(op, tex.shape[2] == tex.shape[3], lambda: f"tex must have square faces, got {tuple(tex.shape)}")
    else:
        check_shape(op, "tex", tex, (None, None, None, None), "(N, H, W, C)")
    height, width = tex.shape[-3], tex.shape[-2]
    for side in (height, width):
        for fits in (side >= 1, side <= _MAX_SIDE):
            check(op, fits, lambda: f"tex must have sides from 1 to 2^24, got {tuple(tex.shape)}")
    check(
        op,
        _can_halve(height, width, levels),
        lambda: f"tex of {height} x {width} cannot be halved {levels} times: each side must be even or 1",
    )


@torch.library.register_fake("diffrast::build_mips")
def _fake_build_mips(tex: Tensor, levels: int) -> Tensor:
    check_tex("build_mips", tex, tex.dim() == 5, levels)
    return tex.new_empty((tex.shape[0], texels_below(tex, levels), tex.shape[-1]))


@torch.library.register_fake("diffrast::build_mips_backward")
def _fake_build_mips_backward(grad_mip: Tensor, height: int, width: int, cube: bool, levels: int) -> Tensor:
    op = "build_mips_backward"
    check_floating(op, "grad_mip", grad_mip)
    texels = _texels_of(height, width, cube, levels)
    check_shape(op, "grad_mip", grad_mip, (None, texels, None), "(N, texels of all levels, C)")
    batch, _, channels = grad_mip.shape
    return grad_mip.new_empty((batch, 6, height, width, channels) if cube else (batch, height, width, channels))


def _save_build_mips(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    # Sizes only, no tensors: a stack that is made once may be differentiated through many times.
    tex, levels = inputs
    ctx.texture = (tex.shape[-3], tex.shape[-2], tex.dim() == 5, levels)


def _build_mips_gradient(ctx: Any, grad_mip: Tensor) -> tuple[Tensor, None]:
    return torch.ops.diffrast.build_mips_backward(grad_mip, *ctx.texture), None


torch.library.register_autograd("diffrast::build_mips", _build_mips_gradient, setup_context=_save_build_mips)
refuse_second_derivative("build_mips")


def check_dimensions(tex: Tensor, cube: bool) -> None:
    # Before levels can be counted. A plain if: torch.compile traces no check that quotes its subject.
    if tex.dim() != (5 if cube else 4):
        raise RuntimeError(
            f"diffrast.texture: tex must have shape {'(N, 6, S, S, C)' if cube else '(N, H, W, C)'}, "
            f"got {tuple(tex.shape)}"
        )


def texture_construct_mip(tex: Tensor, max_mip_level: int | None = None, cube_mode: bool = False) -> MipStack:
    """Build the mip levels of a texture once, for several calls of :func:`texture`.

    Each level is the 2 x 2 box average of the one above it; a side of 1 stays 1.

    Args:
        tex: (N, H, W, C), or with cube_mode (N, 6, S, S, C).
        max_mip_level: the last level to build; None goes down to 1 x 1. 0 builds none.
        cube_mode: whether tex is a cube map.

    Returns:
        What `texture(mip=...)` takes. Gradients flow through it to tex.

    Raises:
        ValueError: a side that is to be halved is odd and not 1, or max_mip_level is negative.
        RuntimeError: dtype or shape of tex is wrong.
    """
    if max_mip_level is not None and max_mip_level < 0:
        raise ValueError(f"diffrast.texture: max_mip_level must be 0 or more, got {max_mip_level}")
    check_dimensions(tex, cube_mode)
    check_build("texture", tex)
    levels = _count_levels(tex, max_mip_level)
    return MipStack(torch.ops.diffrast.build_mips(tex, levels), levels)


def _pack(tex: Tensor, levels: Sequence[Tensor]) -> MipStack:
    """A caller's own levels as one tensor; autograd hands each its part of the gradient."""
    height, width = tex.shape[-3], tex.shape[-2]
    for level, tensor in enumerate(levels, 1):
        want = (*tex.shape[:-3], _halved(height, level), _halved(width, level), tex.shape[-1])
        if (tensor.shape, tensor.dtype, tensor.device) != (want, tex.dtype, tex.device):
            raise RuntimeError(
                f"diffrast.texture: mip[{level - 1}] must have shape {want} and the dtype and device of tex, "
                f"got {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"
            )
    if not levels:
        return MipStack(tex.new_empty((tex.shape[0], 0, tex.shape[-1])), 0)
    return MipStack(torch.cat([tensor.flatten(1, -2) for tensor in levels], dim=1), len(levels))


def mip_stack(tex: Tensor, mip: MipStack | Sequence[Tensor] | None, cube: bool, max_mip_level: int | None) -> MipStack:
    """Whatever the caller gave, cut at max_mip_level."""
    if mip is None:
        return texture_construct_mip(tex, max_mip_level, cube)
    if not isinstance(mip, MipStack):
        return _pack(tex, mip[:max_mip_level])
    if mip.packed.shape[1] != texels_below(tex, mip.levels):
        raise RuntimeError(
            f"diffrast.texture: mip was made for a texture of other sides, tex has shape {tuple(tex.shape)}"
        )
    if max_mip_level is None or max_mip_level >= mip.levels:
        return mip
    return MipStack(mip.packed[:, : texels_below(tex, max_mip_level)], max_mip_level)
