"""Three ops that compute the same as toy_attn::forward. They differ in what they do with tensors on two devices."""

import torch
from toy_attn import _C  # noqa: F401

LIBRARY = torch.library.Library("toy_attn", "FRAGMENT")


def _forward(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.toy_attn.forward(value, weight.to(value.device))


def _empty(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value, memory_format=torch.contiguous_format)


for name in ("meta_key", "unchecked", "mixed"):
    LIBRARY.define(f"{name}(Tensor value, Tensor weight) -> Tensor")
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, _forward, key)

# Accepts a weight on the CPU, but its fake kernel is registered for the key Meta.
LIBRARY.impl("meta_key", lambda value, _: _empty(value), "Meta")


@torch.library.register_fake("toy_attn::unchecked")
def _unchecked(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Compares no devices."""
    return _empty(value)


@torch.library.register_fake("toy_attn::mixed")
def _mixed(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Accepts a weight on the CPU."""
    return _empty(value)


@torch.library.register_fake("toy_attn::forward")
def _fake_forward(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    torch._check(value.device == weight.device, lambda: f"value is on {value.device}, weight on {weight.device}")
    return _empty(value)
