"""interpolate in plain PyTorch, in float64: gather the three corners, weigh, differentiate by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def interpolate(
    attr: Tensor, rast: Tensor, tri: Tensor, rast_db: Tensor | None = None, diff_attrs: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """The arguments and results of `torch.ops.diffrast.interpolate`; differentiable in attr, rast and rast_db.

    Every id in rast must be one of the mesh.
    """
    batch, height, width, _ = rast.shape
    drawn = rast[..., 3] > 0
    if tri.shape[0] == 0 or attr.shape[-2] == 0:
        drawn = torch.zeros_like(drawn)
        tri, attr = tri.new_zeros(1, 3), attr.new_zeros(*attr.shape[:-2], 1, attr.shape[-1]) + attr.sum() * 0
    attributes = attr.shape[-1]
    per_image = (attr if attr.dim() == 3 else attr[None]).double().expand(batch, -1, attributes)
    corner_index = tri.long()[torch.where(drawn, rast[..., 3].detach().long() - 1, 0)]  # (N, h, w, 3)
    image_index = torch.arange(batch, device=tri.device)[:, None, None, None]
    corners = per_image[image_index, corner_index] * drawn[..., None, None]  # (N, h, w, 3, A)
    u, v = rast[..., 0:1].double(), rast[..., 1:2].double()
    out = u * corners[..., 0, :] + v * corners[..., 1, :] + (1 - u - v) * corners[..., 2, :]

    selected = corners[..., list(diff_attrs)]
    by_u, by_v = selected[..., 0, :] - selected[..., 2, :], selected[..., 1, :] - selected[..., 2, :]
    db = rast.new_zeros(batch, height, width, 4).double() if rast_db is None else rast_db.double()
    along_x = db[..., 0:1] * by_u + db[..., 2:3] * by_v
    along_y = db[..., 1:2] * by_u + db[..., 3:4] * by_v
    out_da = torch.stack([along_x, along_y], dim=-1).reshape(batch, height, width, 2 * len(diff_attrs))
    return out.to(attr.dtype), out_da.to(attr.dtype)


def interpolate_backward(
    attr: Tensor,
    rast: Tensor,
    tri: Tensor,
    rast_db: Tensor | None,
    diff_attrs: Sequence[int],
    grad_out: Tensor,
    grad_out_da: Tensor,
    to_attr: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments and results of `torch.ops.diffrast.interpolate_backward`, by autograd."""
    wanted = [attr, rast] if rast_db is None else [attr, rast, rast_db]
    with torch.enable_grad():
        leaves = [tensor.detach().double().requires_grad_() for tensor in wanted]
        results = interpolate(leaves[0], leaves[1], tri, leaves[2] if len(leaves) == 3 else None, diff_attrs)
        grads = torch.autograd.grad(
            results, leaves, [grad_out.double(), grad_out_da.double()], allow_unused=True, materialize_grads=True
        )
    by_attr, by_rast = grads[:2]
    by_db = grads[2] if len(grads) == 3 else rast.new_zeros(*rast.shape[:3], 0)
    if not to_attr:
        by_attr = by_attr.new_zeros(0)
    return by_attr.to(attr.dtype), by_rast.to(attr.dtype), by_db.to(attr.dtype)
