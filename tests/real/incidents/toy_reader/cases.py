"""How to call the op."""

from torch import Tensor

from builder.gate import Case, Make


def doubled(x: Tensor) -> Tensor:
    """What the op computes."""
    return x + x


def arguments(make: Make) -> list[Tensor]:
    """One tensor."""
    return [make.randn(6)]


LEFT_OUT = ("edges", "gradients", "memory", "opcheck", "export", "compile")

CASES = [Case("toy_reader::double", arguments, reference=doubled, not_claimed=dict.fromkeys(LEFT_OUT, "not this test"))]
