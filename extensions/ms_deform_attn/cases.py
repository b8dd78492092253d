"""What the op gate calls: both ops in every dtype, and the names other projects call the first one by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make
from references import deformable_attention as reference

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LEVELS = ((6, 4), (3, 2))
#: Gradients of locations carry a factor of the level's size, so their roundings are larger than those of values.
TOLERANCES = {torch.float16: (4e-3, 8e-3), torch.bfloat16: (3e-2, 6e-2)}

Inputs = Callable[[Make], Sequence[Any]]


def inputs(
    batch: int = 2,
    heads: int = 2,
    channels: int = 4,
    queries: int = 3,
    points: int = 2,
    levels: Sequence[tuple[int, int]] = LEVELS,
    spread: float = 1.0,
    coordinates: torch.dtype | None = None,
    grad: bool = True,
) -> Inputs:
    """The five tensors of the op; locations lie within `spread` times the level around its centre.

    `coordinates`: dtype of locations and weights, where it is not the one under test.
    """

    def made(make: Make) -> Sequence[Any]:
        sizes = [height * width for height, width in levels]
        places = make if coordinates is None else Make(make.device, coordinates, seed=1)
        low, high = 0.5 - spread / 2, 0.5 + spread / 2
        return (
            make.randn(batch, sum(sizes), heads, channels, grad=grad),
            make.integers(levels).reshape(len(levels), 2),
            make.integers([sum(sizes[:level]) for level in range(len(levels))]),
            places.rand(batch, queries, heads, len(levels), points, 2, low=low, high=high, grad=grad),
            places.rand(batch, queries, heads, len(levels), points, low=0.1, high=0.5, grad=grad),
        )

    return made


def with_gradient(**sizes: Any) -> Inputs:
    """The six tensors of the backward op; nothing asks for a gradient, the op is differentiable once."""
    forward = inputs(grad=False, **sizes)

    def made(make: Make) -> Sequence[Any]:
        value, shapes, starts, loc, weight = forward(make)
        heads_times_channels = value.shape[2] * value.shape[3]
        return value, shapes, starts, loc, weight, make.randn(value.shape[0], loc.shape[1], heads_times_channels)

    return made


def no_location_is_finite(make: Make) -> Sequence[Any]:
    """Every kind of number that is no place at all."""
    value, shapes, starts, loc, weight = inputs(queries=5)(make)
    loc = loc.detach().clone()
    for query, bad in enumerate((float("nan"), float("inf"), -float("inf"), 6e4, -6e4)):
        loc[:, query] = bad
    return value, shapes, starts, loc, weight


def nothing_is_sampled(result: Tensor, *_: Tensor) -> None:
    """What lies nowhere contributes zero, and no NaN."""
    assert bool((result == 0).all()), "a location that is not inside any level must contribute zero"


#: What is special, its sizes, and which edge it stands for. Both ops are called with each.
SITUATIONS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("two levels", {}, ""),
    ("one level, one point", {"levels": ((5, 7),), "points": 1}, ""),
    ("five channels", {"channels": 5}, ""),
    ("forty channels", {"channels": 40, "heads": 1}, ""),
    ("locations outside the levels", {"spread": 3.0}, ""),
    ("a level of one pixel", {"levels": ((4, 4), (1, 1))}, ""),
    ("one batch element", {"batch": 1}, "batch"),
    ("no batch element", {"batch": 0}, "empty"),
    ("no query", {"queries": 0}, "empty"),
    ("no point", {"points": 0}, "empty"),
    ("no level", {"levels": ()}, "empty"),
)


def _both(name: str, sizes: dict[str, Any], edge: str) -> tuple[Case, Case]:
    forward = Case(
        op="ms_deform_attn::forward",
        name=name,
        inputs=inputs(**sizes),
        reference=reference.forward,
        dtypes=FLOATS,
        tolerances=TOLERANCES,
        gradcheck=name in {"two levels", "one level, one point", "five channels"},
        edge=edge,
    )
    backward = Case(
        op="ms_deform_attn::backward",
        name=name,
        inputs=with_gradient(**sizes),
        reference=reference.backward,
        dtypes=FLOATS,
        tolerances=TOLERANCES,
        edge=edge,
        deterministic=("cpu",),  # on CUDA the gradient of value is summed by atomics
    )
    return forward, backward


CASES = [case for situation in SITUATIONS for case in _both(*situation)]
CASES += [
    Case(
        op="ms_deform_attn::forward",
        name="locations in float32",
        inputs=inputs(coordinates=torch.float32),
        reference=reference.forward,
        dtypes=(torch.float16, torch.bfloat16),
        tolerances=TOLERANCES,
    ),
    Case(
        op="ms_deform_attn::forward",
        name="locations that are nowhere",
        inputs=no_location_is_finite,
        invariant=nothing_is_sampled,
        dtypes=FLOATS,
    ),
]


def _under_another_name(value: Tensor, shapes: Tensor, starts: Tensor, loc: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return reference.forward(value, shapes, starts, loc, weight)


def with_step_and_list(**sizes: Any) -> Inputs:
    """As the wrappers are called: an im2col_step that does not divide the batch, and the levels as Python integers."""
    return lambda make: (*inputs(batch=3, **sizes)(make), 2, [list(level) for level in LEVELS])


CASES += [
    Case(
        op=f"ms_deform_attn.{function}",
        name=name,
        inputs=with_step_and_list(**sizes),
        reference=_under_another_name,
        dtypes=FLOATS,
        tolerances=TOLERANCES,
        edge=edge,
    )
    for function in ("ms_deform_attn", "MSDeformAttnFunction.apply", "MultiScaleDeformableAttnFunction.apply")
    for name, sizes, edge in (("step and list of levels", {}, ""), ("no query", {"queries": 0}, "empty"))
]
