"""How to call the op."""

from torch import Tensor

from builder.gate import Case, Make


def product(value: Tensor, weight: Tensor) -> Tensor:
    """What the op computes."""
    return value * weight


def arguments(make: Make) -> list[Tensor]:
    """Two tensors of the same shape."""
    return [make.randn(4, 6), make.randn(4, 6)]


LEFT_OUT = ("edges", "gradients", "memory", "opcheck", "export", "compile")

CASES = [Case("toy_attn::forward", arguments, reference=product, not_claimed=dict.fromkeys(LEFT_OUT, "not this test"))]
