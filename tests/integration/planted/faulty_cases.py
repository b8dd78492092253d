"""Cases of the faulty ops. Where only some checks matter, the others are left out to save time, and say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make

PUBLIC = ["planted_faulty"]

FLOATS = (torch.float32, torch.float64)

#: Every check that a case may leave out.
OPTIONAL = (
    "values",
    "gradients",
    "layouts",
    "edges",
    "repeat",
    "memory",
    "opcheck",
    "fake",
    "devices",
    "export",
    "compile",
)


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def pair(make: Make) -> list[Tensor]:
    return [make.randn(4, 6, grad=True), make.randn(4, 6, grad=True)]


def taller(make: Make) -> list[Tensor]:
    return [make.randn(5, 6, grad=True), make.randn(5, 6, grad=True)]


def small(make: Make) -> list[Tensor]:
    return [make.randn(2, 3, grad=True), make.randn(2, 3, grad=True)]


def nothing(make: Make) -> list[Tensor]:
    return [make.randn(0, 6), make.randn(0, 6)]


def numberless(make: Make) -> list[Tensor]:
    return [make.tensor([[1.0, float("nan")]]), make.tensor([[2.0, 3.0]])]


def raising(_: Make) -> list[Tensor]:
    raise KeyError("planted: no such input")


def same_shape(result: Tensor, x: Tensor, _: Tensor) -> None:
    assert result.shape == x.shape


def whole(op: str, inputs: Callable[[Make], Sequence[Any]] = pair, **more: Any) -> Case:
    """Every check."""
    return Case(f"planted_faulty::{op}", inputs, **{"reference": product, **more})


def only(op: str, *checks: str, inputs: Callable[[Make], Sequence[Any]] = pair, **more: Any) -> Case:
    """These checks alone."""
    left_out = {check: "not what this op is for" for check in OPTIONAL if check not in checks}
    return whole(op, inputs, not_claimed=left_out, **more)


CASES = [
    only("no_cuda", "values", "fake", "devices"),
    whole("no_fake"),
    whole("fake_shape"),
    whole("fake_strides"),
    whole("fake_dtype"),
    whole("fake_device"),
    whole("fake_mixed"),
    whole("fake_frozen"),
    only("fake_frozen", "values", inputs=taller, name="more rows"),
    whole("gradient_percent", small, gradcheck=True),
    whole("misread_gradient"),
    only("misread_backward", "values", "layouts"),
    whole("misread_input"),
    only("float64_value", "values", dtypes=FLOATS),
    only("half_missing", "values", dtypes=(torch.float32, torch.float16)),
    only("nan_right", "values", "layouts", inputs=numberless),
    only("nan_wrong", "values"),
    only("flickering", "values", "gradients", "repeat"),
    only("warming", "values", "repeat"),
    whole("past_end"),
    only("past_end", "edges", inputs=nothing, name="empty", edge="empty"),
    whole("input_write"),
    whole("unfinished", reference=None, invariant=same_shape),
    only("hungry", "values"),
    only("greedy", "values"),
    only("endless", "values", "repeat"),
    only("endless", "edges", inputs=nothing, name="empty", edge="empty"),
    only("empty_crash", "values", "repeat"),
    only("empty_crash", "edges", inputs=nothing, name="empty", edge="empty"),
    whole("aborting"),
    only("segfault", "values"),
    only("exiting", "values", "memory"),
    only("quitting", "values", "memory"),
    only("forking", "values"),
    only("descriptors_closed", "values"),
    only("thread_left", "values"),
    only("child_left", "values"),
    only("chatty", "values"),
    only("inputs_raise", "values", inputs=raising),
    only("wrong_reference", "values", reference=lambda x, _: x.no_such_method()),
    Case("planted_faulty.branching", pair, reference=product),
    Case(
        "planted_faulty._bound.total",
        lambda make: [make.randn(3, 4)],
        reference=torch.sum,
        not_claimed={"export": "a function in C", "compile": "a function in C"},
    ),
]
