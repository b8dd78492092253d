"""Cases of the defective ops. To save time, most run only the checks that matter for the defect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make

PUBLIC = ["sample_defective"]

FLOATS = (torch.float32, torch.float64)

#: Checks that a case may omit with `not_claimed`.
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
    raise KeyError("sample: no such input")


def same_shape(result: Tensor, x: Tensor, _: Tensor) -> None:
    assert result.shape == x.shape


def every_check(op: str, inputs: Callable[[Make], Sequence[Any]] = pair, **more: Any) -> Case:
    """A case for every check."""
    return Case(f"sample_defective::{op}", inputs, **{"reference": product, **more})


def only(op: str, *checks: str, inputs: Callable[[Make], Sequence[Any]] = pair, **more: Any) -> Case:
    """A case for these checks only."""
    omitted = {check: "not what this op is for" for check in OPTIONAL if check not in checks}
    return every_check(op, inputs, not_claimed=omitted, **more)


CASES = [
    only("no_cuda", "values", "fake", "devices"),
    only("no_cpu", "values"),
    only("no_autograd", "values", "gradients"),
    every_check("no_fake"),
    every_check("fake_shape"),
    every_check("fake_strides"),
    every_check("fake_dtype"),
    every_check("fake_device"),
    every_check("fake_mixed"),
    every_check("triples_", lambda make: [make.randn(4, 6)], reference=lambda x: 2 * x),
    every_check("fake_frozen"),
    only("fake_frozen", "values", inputs=taller, name="more rows"),
    every_check("gradient_percent", small, gradcheck=True),
    every_check("misread_gradient"),
    only("misread_backward", "values", "layouts"),
    every_check("misread_input"),
    only("float64_value", "values", dtypes=FLOATS),
    only("half_missing", "values", dtypes=(torch.float32, torch.float16)),
    only("nan_right", "values", "layouts", inputs=numberless),
    only("nan_wrong", "values"),
    only("flickering", "values", "gradients", "repeat"),
    only("warming", "values", "repeat"),
    every_check("past_end"),
    only("past_end", "edges", inputs=nothing, name="empty", edge="empty"),
    every_check("input_write"),
    every_check("unfinished", reference=None, invariant=same_shape),
    only("hungry", "values"),
    only("greedy", "values"),
    only("endless", "values", "repeat"),
    only("endless", "edges", inputs=nothing, name="empty", edge="empty"),
    only("empty_crash", "values", "repeat"),
    only("empty_crash", "edges", inputs=nothing, name="empty", edge="empty"),
    every_check("aborting"),
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
    Case("sample_defective.branching", pair, reference=product),
    Case(
        "sample_defective._bound.total",
        lambda make: [make.randn(3, 4)],
        reference=torch.sum,
        not_claimed={"export": "a function in C", "compile": "a function in C"},
    ),
]
