"""The op gate's cases for interpolate and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from builder.gate import Case, Make

from . import scenes
from .interpolate import interpolate, interpolate_backward

Inputs = Callable[[Make], Sequence[Any]]


def inputs(
    attributes: int = 5,
    attr_batch: int | None = 2,
    diff_attrs: Sequence[int] = (3, 0),
    batch: int = 2,
    grad: Sequence[str] = (),
) -> Inputs:
    """Arguments of `diffrast::interpolate` on the cubes; `attr_batch` None is the shape (V, A).

    gradcheck must not move rast: its last channel is an id.
    """

    def make_inputs(make: Make) -> Sequence[Any]:
        pos, tri, rast = scenes.cubes(2, 6, 5)
        shape = (pos.shape[-2], attributes) if attr_batch is None else (attr_batch, pos.shape[-2], attributes)
        attr = make.randn(*shape, grad="attr" in grad)
        rast_db = make.randn(batch, *rast.shape[1:], grad="rast_db" in grad)
        return (
            attr,
            make.tensor(rast[:batch], grad="rast" in grad),
            make.integers(tri, torch.int32),
            rast_db if diff_attrs else None,
            list(diff_attrs),
        )

    return make_inputs


def backward_inputs(**sizes: Any) -> Inputs:  # noqa: ANN401
    """Arguments of `diffrast::interpolate_backward`."""

    def make_inputs(make: Make) -> Sequence[Any]:
        forward = inputs(**sizes)(make)
        raster = forward[1].shape[:3]
        return *forward, make.randn(*raster, forward[0].shape[-1]), make.randn(*raster, 2 * len(forward[4]))

    return make_inputs


#: Name to sizes; several pieces of four attributes, an attribute selected twice, a selection of two passes of 64.
SIZES: dict[str, dict[str, Any]] = {
    "one set of attributes an image": {},
    "attributes without a batch": {"attr_batch": None, "attributes": 9, "diff_attrs": (8, 1, 1)},
    "70 derivatives": {"attributes": 70, "diff_attrs": range(70)},
}
EDGES: dict[str, dict[str, Any]] = {
    "empty": {"batch": 0, "attr_batch": 1},
    "batch": {"batch": 2, "attr_batch": 1, "diff_attrs": ()},
}

CASES: list[Case] = [
    *(
        Case(
            "diffrast::interpolate",
            inputs(**sizes, grad=("attr", "rast", "rast_db")),
            name=name,
            reference=interpolate,
            deterministic=("cpu",),  # on CUDA the gradient of attr is summed by atomics
        )
        for name, sizes in SIZES.items()
    ),
    *(
        Case(
            "diffrast::interpolate_backward",
            backward_inputs(**sizes),
            name=name,
            reference=interpolate_backward,
            deterministic=("cpu",),
        )
        for name, sizes in SIZES.items()
    ),
    Case(
        "diffrast::interpolate",
        inputs(grad=("attr", "rast_db")),
        name="finite differences",
        reference=interpolate,
        gradcheck=True,
        deterministic=("cpu",),
    ),
    *(
        case
        for edge, sizes in EDGES.items()
        for case in (
            Case("diffrast::interpolate", inputs(**sizes, grad=("attr", "rast", "rast_db")), name=edge,
                 reference=interpolate, edge=edge, deterministic=("cpu",)),
            Case("diffrast::interpolate_backward", backward_inputs(**sizes), name=edge,
                 reference=interpolate_backward, edge=edge, deterministic=("cpu",)),
        )
    ),
    Case("diffrast::interpolate", inputs(grad=("attr", "rast", "rast_db")), name="float64", reference=interpolate,
         dtypes=(torch.float64,), devices=("cpu",)),
    Case("diffrast::interpolate_backward", lambda make: (*backward_inputs()(make), False), name="constant attributes",
         reference=interpolate_backward),
    Case("diffrast::interpolate_backward", backward_inputs(), name="float64", reference=interpolate_backward,
         dtypes=(torch.float64,), devices=("cpu",)),
]  # fmt: skip
