"""Reductions by group in plain PyTorch, by the definition: a table of who belongs to which group, then a reduction.

Shapes: `src` (..., n, ...), n rows along `dim`; `members` (..., groups, n, ...) bool, broadcastable, groups at `dim`.
An empty group answers 0 (1 for "mul"), and for "min" and "max" n as the place of its winner, as torch-scatter does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def spread(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """An index in the shape of src: given for the rows along `dim`, for leading dimensions, or for each element."""
    if index.dim() == 1:
        index = index.reshape([-1 if d == dim else 1 for d in range(src.dim())])
    return index.reshape(*index.shape, *[1] * (src.dim() - index.dim())).expand_as(src)


def members_of_index(index: Tensor, src: Tensor, dim: int, groups: int | None) -> Tensor:
    """The table for an index along `dim`; as many groups as told, else one more than the largest number."""
    groups = groups if groups is not None else (int(index.max()) + 1 if index.numel() else 0)
    each = torch.arange(groups, device=src.device).reshape([-1 if d == dim else 1 for d in range(src.dim() + 1)])
    return spread(index, src, dim).unsqueeze(dim) == each


def members_of_pointers(pointers: Tensor, src: Tensor) -> Tensor:
    """The table for (..., groups + 1) bounds: group i holds the rows pointers[i] up to pointers[i + 1]."""
    dim = pointers.dim() - 1
    rows = torch.arange(src.shape[dim], device=src.device)
    held = (pointers[..., :-1, None] <= rows) & (rows < pointers[..., 1:, None])
    return held.reshape(*held.shape, *[1] * (src.dim() - dim - 1))


def index_of_pointers(pointers: Tensor) -> Tensor:
    """The group of each row: (..., groups + 1) bounds, all ending at the same n, to (..., n)."""
    rows = torch.arange(int(pointers.max()), device=pointers.device)
    return (pointers[..., 1:, None] <= rows).sum(-2)


def reduced(src: Tensor, members: Tensor, dim: int, reduce: str) -> Tensor | tuple[Tensor, Tensor]:
    """The reduction of each group; with "min" and "max" also the row it came from."""
    rows, members = torch.broadcast_tensors(src.unsqueeze(dim), members)
    if reduce in {"min", "max"}:
        return _extreme(rows, members, dim + 1, reduce)
    kept = torch.where(members, rows, torch.full_like(rows, int(reduce == "mul")))
    if reduce == "mul":
        return kept.prod(dim + 1, dtype=src.dtype)
    total = kept.sum(dim + 1, dtype=src.dtype)
    if reduce == "sum":
        return total
    count = members.sum(dim + 1).clamp(min=1)
    return total / count if src.is_floating_point() else total.div(count, rounding_mode="floor").to(src.dtype)


def _extreme(rows: Tensor, members: Tensor, dim: int, reduce: str) -> tuple[Tensor, Tensor]:
    """Minimum or maximum over `dim`, and its place there."""
    n, nobody = rows.shape[dim], ~members.any(dim)
    if n == 0:
        nothing = rows.sum(dim, dtype=rows.dtype)
        return nothing, torch.full_like(nothing, n, dtype=torch.int64)
    limits = torch.finfo(rows.dtype) if rows.is_floating_point() else torch.iinfo(rows.dtype)
    worst = torch.full_like(rows, limits.max if reduce == "min" else limits.min)
    masked = torch.where(members, rows, worst)
    values, places = masked.min(dim) if reduce == "min" else masked.max(dim)
    return values.masked_fill(nobody, 0), places.masked_fill(nobody, n)


def gathered(src: Tensor, index: Tensor, dim: int) -> Tensor:
    """The way back: each row gets its group's number. src (..., groups, ...), index (..., n), result (..., n, ...)."""
    trailing = src.shape[dim + 1 :]
    index = index.reshape(*index.shape, *[1] * len(trailing))
    return src.gather(dim, index.expand(*src.shape[:dim], index.shape[dim], *trailing))


def deviation(src: Tensor, index: Tensor, dim: int, groups: int | None) -> Tensor:
    """Standard deviation of each group; torch-scatter adds 1e-6 to the count less one that it divides by."""
    rows, members = torch.broadcast_tensors(src.unsqueeze(dim), members_of_index(index, src, dim, groups))
    count = members.sum(dim + 1).to(src.dtype)
    none = torch.zeros_like(rows)
    mean = torch.where(members, rows, none).sum(dim + 1) / count.clamp(min=1)
    off = torch.where(members, rows - mean.unsqueeze(dim + 1), none)
    return ((off * off).sum(dim + 1) / ((count - 1).clamp(min=1) + 1e-6)).sqrt()


def log_sum_exp(src: Tensor, index: Tensor, dim: int, groups: int | None) -> Tensor:
    """Of each group; 0 for an empty one."""
    rows, members = torch.broadcast_tensors(src.unsqueeze(dim), members_of_index(index, src, dim, groups))
    if src.shape[dim] == 0:
        return rows.sum(dim + 1)
    nobody = ~members.any(dim + 1)
    masked = rows.masked_fill(~members & ~nobody.unsqueeze(dim + 1), -torch.inf)
    return masked.logsumexp(dim + 1).masked_fill(nobody, 0.0)


def log_softmax(src: Tensor, index: Tensor, dim: int, groups: int | None) -> Tensor:
    """Within each group."""
    return src - log_sum_exp(src, index, dim, groups).gather(dim, spread(index, src, dim))
