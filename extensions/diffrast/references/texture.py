"""texture and its mips in plain PyTorch, float64: slow, differentiable, for tests and the op gate.

Built from torch's own sampling: wrap, clamp and zero are `grid_sample` on a padded texture, a cube map is six padded
faces, mips are `avg_pool2d`, and the mip level is the largest singular value of the footprint's Jacobian.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

#: OpenGL's cube map (specification of 4.6, table 8.19): per face the axis it faces, that of s and that of t.
CUBE_FACES = torch.tensor(
    [
        [[1, 0, 0], [0, 0, -1], [0, -1, 0]],
        [[-1, 0, 0], [0, 0, 1], [0, -1, 0]],
        [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
        [[0, -1, 0], [1, 0, 0], [0, 0, -1]],
        [[0, 0, 1], [1, 0, 0], [0, -1, 0]],
        [[0, 0, -1], [-1, 0, 0], [0, -1, 0]],
    ],
    dtype=torch.float64,
)


def halve(tex: Tensor) -> Tensor:
    """The next mip level of (N, H, W, C) or (N, 6, S, S, C): 2x2 means; a side of 1 stays."""
    height, width, channels = tex.shape[-3:]
    rows, columns = min(height, 2), min(width, 2)
    if height % rows or width % columns:
        raise ValueError(f"{height} x {width} cannot be halved")
    flat = tex.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
    pooled = functional.avg_pool2d(flat, (rows, columns)).permute(0, 2, 3, 1)
    return pooled.reshape(*tex.shape[:-3], *pooled.shape[1:])


def build_mips(tex: Tensor, levels: int | None = None) -> list[Tensor]:
    """The levels below tex, down to 1 x 1 or so many."""
    stack = [tex]
    while max(stack[-1].shape[-3:-1]) > 1 and (levels is None or len(stack) <= levels):
        stack.append(halve(stack[-1]))
    return stack[1:]


def pack_mips(levels: Sequence[Tensor]) -> Tensor:
    """(N, texels of all levels, C), as the operator `texture` takes them."""
    return torch.cat([level.flatten(1, -2) for level in levels], dim=1)


def unpack_mips(packed: Tensor, tex: Tensor, levels: int) -> list[Tensor]:
    """The levels of a pack, shaped as mips of tex."""
    shapes = [mip.shape for mip in build_mips(tex.new_empty((1, *tex.shape[1:-1], 1)), levels)]
    parts = packed.split([shape[1:-1].numel() for shape in shapes], dim=1)
    return [part.reshape(tex.shape[0], *shape[1:-1], tex.shape[-1]) for part, shape in zip(parts, shapes)]


def _grid_sample(tex: Tensor, st: Tensor, mode: str, padding: str) -> Tensor:
    """(N, H, W, C) at (N, h, w, 2) in [0, 1]."""
    images = tex.permute(0, 3, 1, 2).expand(st.shape[0], -1, -1, -1)
    out = functional.grid_sample(images, 2 * st - 1, mode=mode, padding_mode=padding, align_corners=False)
    return out.permute(0, 2, 3, 1)


def _padded(st: Tensor, height: int, width: int) -> Tensor:
    """The same places in a texture with one more texel on each side."""
    size = st.new_tensor([width, height])
    return (st * size + 1) / (size + 2)


def _sample_plane(tex: Tensor, uv: Tensor, nearest: bool, boundary: str) -> Tensor:
    mode = "nearest" if nearest else "bilinear"
    if boundary != "wrap":
        return _grid_sample(tex, uv, mode, {"clamp": "border", "zero": "zeros"}[boundary])
    height, width = tex.shape[1:3]
    wide = functional.pad(tex.permute(0, 3, 1, 2), (1, 1, 1, 1), mode="circular").permute(0, 2, 3, 1)
    return _grid_sample(wide, _padded(uv - uv.floor(), height, width), mode, "zeros")


def cube_face(direction: Tensor) -> Tensor:
    """(..., 3) to the number of the face it meets."""
    axis = direction.abs().argmax(-1)
    return 2 * axis + (direction.gather(-1, axis[..., None])[..., 0] < 0)


def project(direction: Tensor, face: Tensor) -> Tensor:
    """(..., 3) to (s, t) in [0, 1] on the given faces."""
    axes = CUBE_FACES.to(direction)[face]
    along = (axes * direction[..., None, :]).sum(-1)
    return (along[..., 1:] / along[..., :1] + 1) / 2


def texel_centres(size: int) -> Tensor:
    """(6, S, S, 3): where the texels of a cube from -1 to 1 lie."""
    steps = (2 * torch.arange(size, dtype=torch.float64) + 1) / size - 1
    forward, right, down = CUBE_FACES.unbind(1)
    return (
        forward[:, None, None, :]
        + right[:, None, None, :] * steps[None, None, :, None]
        + down[:, None, None, :] * steps[None, :, None, None]
    )


def _pad_face(tex: Tensor, face: int, centres: Tensor) -> Tensor:
    size = tex.shape[2]
    flat = tex.flatten(1, 3)
    inside = tex[:, face]
    own = torch.arange(6 * size * size).div(size * size, rounding_mode="floor") == face
    _, right, down = CUBE_FACES[face]

    def beyond(edge: Tensor, step: Tensor) -> Tensor:
        distance = torch.cdist(edge + step * (2 / size), centres.reshape(-1, 3))
        return flat[:, distance.masked_fill(own, torch.inf).argmin(1).to(tex.device)]

    west, east = beyond(centres[face, :, 0], -right), beyond(centres[face, :, -1], right)
    top, bottom = beyond(centres[face, 0], -down), beyond(centres[face, -1], down)

    def corner(row: int, column: int) -> Tensor:
        side, lid = (east if column else west), (bottom if row else top)
        return ((inside[:, row, column] + side[:, row] + lid[:, column]) / 3)[:, None]

    above = torch.cat([corner(0, 0), top, corner(0, -1)], 1)
    below = torch.cat([corner(-1, 0), bottom, corner(-1, -1)], 1)
    middle = torch.cat([west[:, :, None], inside, east[:, :, None]], 2)
    return torch.cat([above[:, None], middle, below[:, None]], 1)


def pad_cube(tex: Tensor) -> Tensor:
    """(N, 6, S, S, C) to (N, 6, S+2, S+2, C): each face with the texels beyond its edges.

    A border texel is the one of another face that lies nearest in space to the step over the edge; a corner is the mean
    of the three texels that meet there.
    """
    centres = texel_centres(tex.shape[2])
    return torch.stack([_pad_face(tex, face, centres) for face in range(6)], 1)


def _sample_cube(tex: Tensor, direction: Tensor, nearest: bool) -> Tensor:
    face = cube_face(direction)
    st = project(direction, face)
    size = tex.shape[2]
    wide = tex if nearest else pad_cube(tex)
    st = st if nearest else _padded(st, size, size)
    out = tex.new_zeros((*face.shape, tex.shape[-1]))
    for number in range(6):
        seen = _grid_sample(wide[:, number], st, "nearest" if nearest else "bilinear", "border")
        out = torch.where((face == number)[..., None], seen, out)
    return out


def sample(tex: Tensor, uv: Tensor, boundary: str, *, nearest: bool = False) -> Tensor:
    """One mip level; 0 without gradient where uv is not finite or a direction is zero."""
    valid = uv.isfinite().all(-1, keepdim=True)
    if boundary == "cube":
        valid = valid & (uv.abs().amax(-1, keepdim=True) > 0)
    # A place to sample instead, so that no NaN reaches the gradient.
    safe = torch.where(valid, uv, torch.ones_like(uv) / 2)
    seen = _sample_cube(tex, safe, nearest) if boundary == "cube" else _sample_plane(tex, safe, nearest, boundary)
    return torch.where(valid, seen, torch.zeros_like(seen))


def footprint_level(tex: Tensor, uv: Tensor, uv_da: Tensor, boundary: str) -> Tensor:
    """(N, h, w): log2 of the footprint's longer axis in texels of the base."""
    rates = uv_da.unflatten(-1, (-1, 2))
    if boundary == "cube":
        face = cube_face(uv)
        columns = [torch.func.jvp(lambda d: project(d, face), (uv,), (rates[..., k],))[1] for k in range(2)]
        rates = torch.stack(columns, -1)
    size = torch.tensor([tex.shape[-2], tex.shape[-3]], dtype=rates.dtype, device=rates.device)
    jacobian = rates * size[:, None]
    zero = (jacobian == 0).all(-1).all(-1)
    seen = torch.where(zero[..., None, None], torch.eye(2, dtype=rates.dtype, device=rates.device), jacobian)
    level = torch.linalg.svdvals(seen)[..., 0].log2()
    return torch.where(zero, torch.full_like(level, -torch.inf), level)


def texture(
    tex: Tensor,
    uv: Tensor,
    uv_da: Tensor | None = None,
    mip_level_bias: Tensor | None = None,
    mip: Sequence[Tensor] | None = None,
    filter_mode: str = "linear",
    boundary_mode: str = "wrap",
    max_mip_level: int | None = None,
) -> Tensor:
    """As diffrast.texture, without 'auto'. Computed in float64, answered in the dtype of tex."""
    dtype = tex.dtype
    tex, uv = tex.double(), uv.double()
    if "mipmap" not in filter_mode:
        return sample(tex, uv, boundary_mode, nearest=filter_mode == "nearest").to(dtype)
    stack = [tex, *(build_mips(tex, max_mip_level) if mip is None else [level.double() for level in mip])]
    level = torch.zeros(uv.shape[:-1], dtype=torch.float64, device=uv.device)
    if uv_da is not None:
        level = level + footprint_level(tex, uv, uv_da.double(), boundary_mode)
    if mip_level_bias is not None:
        level = level + mip_level_bias.double()
    level = level.clamp(0, len(stack) - 1)
    if filter_mode == "linear-mipmap-nearest":
        level = (level.detach() + 0.5).floor()
    # Each level counts by a hat of width 1 around it.
    out = tex.new_zeros((*uv.shape[:-1], tex.shape[-1]))
    for number, image in enumerate(stack):
        share = (1 - (level - number).abs()).clamp_min(0)
        out = out + share[..., None] * sample(image, uv, boundary_mode)
    return out.to(dtype)
