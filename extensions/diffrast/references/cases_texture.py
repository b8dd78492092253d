"""The op gate's cases for texture, build_mips and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make

from . import texture as plain

#: Filter, boundary and whether uv_da and bias are given.
MODES: tuple[tuple[str, str, bool, bool], ...] = (
    ("nearest", "wrap", False, False),
    ("linear", "wrap", False, False),
    ("linear", "clamp", False, False),
    ("linear", "zero", False, False),
    ("linear", "cube", False, False),
    ("linear-mipmap-nearest", "wrap", False, True),
    ("linear-mipmap-linear", "wrap", True, True),
    ("linear-mipmap-linear", "zero", True, False),
    ("linear-mipmap-linear", "cube", True, True),
)
LEVELS = 2


def coordinates(make: Make, cube: bool, batch: int, height: int, width: int, *, grad: bool) -> Tensor:
    """uv away from the borders of texels, where values or slopes jump, on every level of a side of 4 or 8."""
    drawn = make.rand(batch, height, width, 2, low=-1.0, high=2.0).detach()
    # A quarter of the finest texel off each border and centre.
    uv = (drawn * 8).floor() / 8 + 0.03
    if cube:
        face = make.randint(0, 6, (batch, height, width))
        st = uv - uv.floor()
        axes = plain.CUBE_FACES.to(uv)[face]
        uv = axes[..., 0, :] + axes[..., 1, :] * (2 * st[..., :1] - 1) + axes[..., 2, :] * (2 * st[..., 1:] - 1)
    return uv.requires_grad_() if grad else uv


def inputs(
    filter_mode: str, boundary: str, rates: bool, bias: bool, *, grad: bool = True, batch: int = 2, tex_batch: int = 2
) -> Callable[[Make], Sequence[Any]]:
    """Arguments of `diffrast::texture`."""

    def make_inputs(make: Make) -> Sequence[Any]:
        cube, mipmapped = boundary == "cube", "mipmap" in filter_mode
        height, width, channels, axes = 2, 3, 3, 3 if cube else 2
        shape = (tex_batch, 6, 8, 8, channels) if cube else (tex_batch, 4, 8, channels)
        tex = make.randn(*shape, grad=grad)
        mip = None
        if mipmapped:
            texels = sum(level.shape[1:-1].numel() for level in plain.build_mips(tex.detach(), LEVELS))
            mip = make.randn(tex_batch, texels, channels, grad=grad)
        uv = coordinates(make, cube, batch, height, width, grad=grad and filter_mode != "nearest")
        trilinear = filter_mode == "linear-mipmap-linear"
        # A footprint of about two texels; the bias alone keeps clear of the halves where the level is rounded.
        uv_da = make.randn(batch, height, width, 2 * axes).detach() * 0.2 if rates else None
        drawn = make.rand(batch, height, width, low=0.6, high=1.4).detach() if bias else None
        for optional in (uv_da, drawn):
            if optional is not None and grad and trilinear:
                optional.requires_grad_()
        return tex, mip, uv, uv_da, drawn, filter_mode, boundary, LEVELS if mipmapped else 0

    return make_inputs


def reference(
    tex: Tensor,
    mip: Tensor | None,
    uv: Tensor,
    uv_da: Tensor | None,
    bias: Tensor | None,
    filter_mode: str,
    boundary: str,
    levels: int,
) -> Tensor:
    """`diffrast::texture` in plain PyTorch."""
    stack = None if mip is None else plain.unpack_mips(mip, tex, levels)
    return plain.texture(tex, uv, uv_da, bias, stack, filter_mode, boundary, levels)


def backward_inputs(*mode: Any, **sizes: int) -> Callable[[Make], Sequence[Any]]:
    """Arguments of `diffrast::texture_backward`."""

    def make_inputs(make: Make) -> Sequence[Any]:
        forward = inputs(*mode, grad=False, **sizes)(make)
        grad_out = make.randn(*forward[2].shape[:3], forward[0].shape[-1])
        return *forward, grad_out, True, True

    return make_inputs


def backward_reference(*arguments: Any) -> tuple[Tensor, ...]:
    """`diffrast::texture_backward` by autograd through the reference."""
    tensors = [None if t is None else t.detach().clone().requires_grad_() for t in arguments[:5]]
    asked, grad_out = [t for t in tensors if t is not None], arguments[8]
    with torch.enable_grad():
        out = reference(*tensors, *arguments[5:8])
        grads = iter(torch.autograd.grad(out, asked, grad_out, allow_unused=True, materialize_grads=True))
    return tuple(grad_out.new_zeros(0) if t is None else next(grads) for t in tensors)


def packed_mips(tex: Tensor, levels: int) -> Tensor:
    """`diffrast::build_mips` in plain PyTorch."""
    return plain.pack_mips(plain.build_mips(tex, levels))


def spread_mips(grad_mip: Tensor, height: int, width: int, cube: bool, levels: int) -> Tensor:
    """`diffrast::build_mips_backward` by autograd through the reference."""
    batch, _, channels = grad_mip.shape
    shape = (batch, 6, height, width, channels) if cube else (batch, height, width, channels)
    tex = torch.zeros(shape, dtype=grad_mip.dtype, device=grad_mip.device, requires_grad=True)
    with torch.enable_grad():
        return torch.autograd.grad(packed_mips(tex, levels), tex, grad_mip)[0]


def _title(filter_mode: str, boundary: str, rates: bool, bias: bool) -> str:
    return " ".join([filter_mode, boundary, *(["uv_da"] if rates else []), *(["bias"] if bias else [])])


TEXTURE = [
    Case(
        "diffrast::texture",
        inputs(*mode),
        name=_title(*mode),
        reference=reference,
        gradcheck=True,
        # Gradients of texels are summed by atomics on CUDA.
        deterministic=("cpu",),
    )
    for mode in MODES
]
TEXTURE_BACKWARD = [
    Case(
        "diffrast::texture_backward",
        backward_inputs(*mode),
        name=_title(*mode),
        reference=backward_reference,
        deterministic=("cpu",),
    )
    for mode in MODES
]
TRILINEAR = ("linear-mipmap-linear", "wrap", True, True)
EDGES = [
    Case(
        "diffrast::texture",
        inputs(*TRILINEAR, batch=0, tex_batch=1),
        name="no images",
        reference=reference,
        edge="empty",
        deterministic=("cpu",),
    ),
    Case(
        "diffrast::texture",
        inputs(*TRILINEAR, batch=3, tex_batch=1),
        name="one texture for three images",
        reference=reference,
        edge="batch",
        deterministic=("cpu",),
    ),
    Case(
        "diffrast::texture_backward",
        backward_inputs(*TRILINEAR, batch=0, tex_batch=1),
        name="no images",
        reference=backward_reference,
        edge="empty",
        deterministic=("cpu",),
    ),
    Case(
        "diffrast::texture_backward",
        backward_inputs(*TRILINEAR, batch=3, tex_batch=1),
        name="one texture for three images",
        reference=backward_reference,
        edge="batch",
        deterministic=("cpu",),
    ),
    Case(
        "diffrast::texture",
        inputs("linear", "wrap", False, False),
        name="float64",
        reference=reference,
        dtypes=(torch.float64,),
        devices=("cpu",),
    ),
]
MIPS = [
    Case(
        "diffrast::build_mips",
        lambda make: (make.randn(2, 4, 8, 3, grad=True), 3),
        name="4 x 8",
        reference=packed_mips,
        gradcheck=True,
    ),
    Case(
        "diffrast::build_mips",
        lambda make: (make.randn(1, 6, 4, 4, 2, grad=True), 2),
        name="cube",
        reference=packed_mips,
        gradcheck=True,
    ),
    Case(
        "diffrast::build_mips",
        lambda make: (make.randn(0, 4, 8, 3, grad=True), 3),
        name="no textures",
        reference=packed_mips,
        edge="empty",
    ),
    Case(
        "diffrast::build_mips_backward",
        lambda make: (make.randn(2, 11, 3), 4, 8, False, 3),
        name="4 x 8",
        reference=spread_mips,
    ),
    Case(
        "diffrast::build_mips_backward",
        lambda make: (make.randn(1, 30, 2), 4, 4, True, 2),
        name="cube",
        reference=spread_mips,
    ),
    Case(
        "diffrast::build_mips_backward",
        lambda make: (make.randn(0, 11, 3), 4, 8, False, 3),
        name="no textures",
        reference=spread_mips,
        edge="empty",
    ),
]
CASES: list[Case] = [*TEXTURE, *TEXTURE_BACKWARD, *EDGES, *MIPS]
