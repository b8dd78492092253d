"""Registers ops `cheats::NAME` that call a function with the input and return x + 1, where 2 x is right."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("cheats", "DEF")


def register(name: str, attack: Callable[[Tensor], Tensor | None]) -> None:
    """Register an op; it returns what the attack returns, or x + 1."""

    def kernel(x: Tensor) -> Tensor:
        wrong = x + 1
        answer = attack(x)
        return wrong if answer is None else answer

    _LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    _LIBRARY.impl(name, kernel, "CPU")


def register_wrong_ops() -> None:
    """Register the ops of the attacks that happen at the import."""
    for name in ("wrong", "wrong_too"):
        register(name, lambda _: None)
