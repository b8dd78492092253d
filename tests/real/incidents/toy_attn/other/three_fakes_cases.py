"""How to call the four ops: two of them accept a weight on the CPU beside a value on the GPU."""

from torch import Tensor

from builder.gate import Case, Make


def product(value: Tensor, weight: Tensor) -> Tensor:
    """What each op computes."""
    return value * weight


def arguments(make: Make) -> list[Tensor]:
    """Two tensors of the same shape."""
    return [make.randn(4, 6), make.randn(4, 6)]


LEFT_OUT = ("edges", "gradients", "memory", "opcheck", "export", "compile")
OPS: dict[str, tuple[int, ...]] = {"forward": (), "unchecked": (), "mixed": (1,), "meta_key": (1,)}

CASES = [
    Case(
        f"toy_attn::{name}",
        arguments,
        reference=product,
        mixed_devices=mixed,
        not_claimed=dict.fromkeys(LEFT_OUT, "not this test"),
    )
    for name, mixed in OPS.items()
]
