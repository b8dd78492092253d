"""Cases of the correct ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make

PUBLIC = ["sample_correct"]

FLOATS = (torch.float32, torch.float64)


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def doubled(x: Tensor) -> None:
    x.mul_(2)


def pair(make: Make) -> list[Tensor]:
    return [make.randn(4, 6, grad=True), make.randn(4, 6, grad=True)]


def empty_pair(make: Make) -> list[Tensor]:
    return [make.randn(0, 6, grad=True), make.randn(0, 6, grad=True)]


def table(rows: list[int]) -> Any:
    return lambda make: [make.randn(5, 3, grad=True), make.integers(rows)]


def blended(parts: list[Tensor], offset: Tensor | None = None, *, scale: int = 1) -> Tensor:
    added = sum(parts[1:], parts[0]) * scale
    return added if offset is None else added + offset


def within_unit(result: Tensor, like: Tensor) -> None:
    assert result.shape == like.shape
    assert ((result >= 0) & (result <= 1)).all()


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x / 2, x / 2


CASES = [
    Case("sample_correct::multiply", pair, reference=product, dtypes=FLOATS, gradcheck=True),
    Case("sample_correct::multiply", empty_pair, "empty", reference=product, dtypes=FLOATS, edge="empty"),
    Case(
        "sample_correct::multiply",
        lambda make: [make.randn(1, 6, grad=True), make.randn(1, 6, grad=True)],
        "one row",
        reference=product,
        edge="batch",
    ),
    Case(
        "sample_correct::multiply",
        lambda make: [make.tensor([[1.0, float("nan")]]), make.tensor([[2.0, 3.0]])],
        "not a number in, not a number out",
        reference=product,
    ),
    Case(
        "sample_correct::pick",
        table([4, 0, 4]),
        reference=lambda t, i: t[i],
        dtypes=(*FLOATS, torch.float16, torch.bfloat16),
        gradcheck=True,
    ),
    Case("sample_correct::pick", table([]), "empty", reference=lambda t, i: t[i], edge="empty"),
    Case("sample_correct::halves", lambda make: [make.randn(3, 4)], reference=halves),
    Case("sample_correct::halves", lambda make: [make.randn(0, 4)], "empty", reference=halves, edge="empty"),
    Case("sample_correct::double_", lambda make: [make.randn(3, 4)], reference=doubled),
    Case("sample_correct::double_", lambda make: [make.randn(0, 4)], "empty", reference=doubled, edge="empty"),
    Case(
        "sample_correct::blend",
        lambda make: [[make.randn(3, 4), make.randn(3, 4)], make.randn(3, 4)],
        "with an offset",
        kwargs={"scale": 3},
        reference=blended,
        dtypes=FLOATS,
    ),
    Case(
        "sample_correct::blend",
        lambda make: [[make.randint(0, 9, (3, 4)), make.randint(0, 9, (3, 4))]],
        "integers, no offset",
        reference=blended,
        dtypes=(torch.int64,),
    ),
    Case("sample_correct::blend", lambda make: [[make.randn(0, 4)], None], "empty", reference=blended, edge="empty"),
    Case("sample_correct::positive", lambda make: [make.randn(9)], reference=lambda x: (x > 0).nonzero().squeeze(1)),
    Case(
        "sample_correct::positive",
        lambda make: [make.randn(0)],
        "empty",
        reference=lambda x: (x > 0).nonzero().squeeze(1),
        edge="empty",
    ),
    Case("sample_correct::noise", lambda make: [make.randn(3, 4)], invariant=within_unit, deterministic=()),
    Case(
        "sample_correct::noise",
        lambda make: [make.randn(0, 4)],
        "empty",
        invariant=within_unit,
        deterministic=(),
        edge="empty",
    ),
    Case(
        "sample_correct::shifted",
        lambda make: [make.randn(3, 4), make.tensor([2.0])],
        reference=lambda x, amount: x + amount,
        mixed_devices=(1,),
    ),
    Case(
        "sample_correct::shifted",
        lambda make: [make.randn(0, 4), make.tensor([2.0])],
        "empty",
        reference=lambda x, amount: x + amount,
        mixed_devices=(1,),
        edge="empty",
    ),
    Case("sample_correct::line", lambda make: [make.randn(3, 4), 1.0, 0.5], reference=lambda x, a, b: a * x + b),
    Case(
        "sample_correct::line",
        lambda make: [make.randn(0, 4), 1.0, 0.5],
        "empty",
        reference=lambda x, a, b: a * x + b,
        edge="empty",
    ),
    Case("sample_correct::squared", lambda make: [make.randn(3, 4, grad=True)], reference=lambda x: x * x),
    Case(
        "sample_correct::squared",
        lambda make: [make.randn(0, 4, grad=True)],
        "empty",
        reference=lambda x: x * x,
        edge="empty",
    ),
    Case("sample_correct.multiply", pair, reference=product),
    Case(
        "sample_correct.normalised",
        lambda make: [make.rand(3, 4, low=1, high=2, grad=True)],
        reference=lambda x: x / x.norm(dim=1, keepdim=True),
        dtypes=FLOATS,
    ),
    Case(
        "sample_correct._bound.total",
        lambda make: [make.randn(3, 4)],
        reference=torch.sum,
        not_claimed={"export": "a function in C", "compile": "a function in C"},
    ),
]
