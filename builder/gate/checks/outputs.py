"""What one call of an op gives: its result, and what it wrote to its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from builder.gate.case import Case
from builder.gate.checks.guard_pages import mutable
from builder.gate.context import Context, flatten, map_tensors


@dataclass(frozen=True)
class Outputs:
    """What one call gives."""

    #: The result. For an op that returns nothing: the arguments that it may write to, in a list, in their order.
    value: Any
    #: The arguments that it may write to, after the call, by position.
    written: Mapping[int, Any]
    #: The positions of those that are not in `value`.
    not_returned: Sequence[int]

    @property
    def beside(self) -> dict[int, Any]:
        """The arguments of `written` that are not in `value`."""
        return {position: self.written[position] for position in self.not_returned}

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of `value`, then those of `beside`."""
        return flatten([self.value, *self.beside.values()])

    def map(self, change: Callable[[Tensor], Tensor]) -> Outputs:
        """Return them with every tensor changed."""

        def one(leaf: Any) -> Any:  # noqa: ANN401
            return change(leaf) if isinstance(leaf, Tensor) else leaf

        return Outputs(tree_map(one, self.value), tree_map(one, dict(self.written)), self.not_returned)


def outputs_of(context: Context, case: Case, args: Sequence[Any]) -> Outputs:
    """Call the op with these arguments."""
    written = mutable(context, case)
    given = writable(args, written)
    return outputs(context.call(case, given), given, written)


def outputs(result: Any, args: Sequence[Any], written: Set[int]) -> Outputs:  # noqa: ANN401
    """Return what a call has given that returned `result`; `written` are positions in its arguments `args`."""
    after = {position: args[position] for position in sorted(written) if position < len(args)}
    value = result if flatten(result) else list(after.values()) or result
    returned = flatten(value)

    def in_value(arg: Any) -> bool:  # noqa: ANN401
        return all(any(_same_memory(one, other) for other in returned) for one in flatten(arg))

    return Outputs(value, after, [position for position, arg in after.items() if not in_value(arg)])


def writable(args: Sequence[Any], written: Set[int]) -> tuple[Any, ...]:
    """Return the arguments with a copy of each tensor at these positions that requires a gradient.

    Autograd refuses a write to a leaf. A gradient flows through the copy to the original.
    """
    return map_tensors(args, lambda path, one: one.clone() if path.position in written and one.requires_grad else one)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    same = (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    same = same and (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
    return same and one.data_ptr() == other.data_ptr()
