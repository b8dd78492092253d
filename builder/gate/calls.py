"""A case's call as a function of its tensors, and the cases whose calls differ in sizes alone. Executes no op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.context import Context, places


class Calling(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """A module around a call, which is what torch.export takes."""

    def __init__(self, call: Callable[[Sequence[Tensor]], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, tensors: list[Tensor]) -> Any:  # noqa: ANN401
        """The call."""
        return self.call(tensors)


def rebuilding(context: Context, case: Case, args: Sequence[Any]) -> Callable[[Sequence[Tensor]], Any]:
    """The case's call as a function of its tensors alone; all else is a constant, as it is in a model's source."""
    function, kwargs = context.function(case), dict(case.kwargs)
    # Told by words: a position would be a number, so a symbol under dynamic=True, and torch 2.2 and 2.6 trace no
    # assignment to an item whose place is a symbol.
    layout = [_part(arg) for arg in args]

    def call(tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401
        given = iter(tensors)
        built: list[Any] = []
        for kind, value in layout:
            if kind == "tensor":
                built.append(next(given))
            elif kind == "list":
                items: list[Any] = []
                for item_kind, item in value:
                    items.append(next(given) if item_kind == "tensor" else item)
                built.append(items)
            else:
                built.append(value)
        return function(*built, **kwargs)

    return call


def _part(arg: Any) -> tuple[str, Any]:  # noqa: ANN401
    """What an argument is rebuilt from: a tensor given, a list with tensors among its items, or itself."""
    if isinstance(arg, Tensor):
        return "tensor", None
    if isinstance(arg, (list, tuple)) and any(isinstance(item, Tensor) for item in arg):
        return "list", [("tensor", None) if isinstance(item, Tensor) else ("constant", item) for item in arg]
    return "constant", arg


def alike(context: Context, case: Case) -> tuple[Case, list[Case]]:
    """Of the op's cases that differ from this one in sizes alone, itself among them: the first, and all others.

    They have the same constants, ranks and dtypes. The first is tried on the sizes of all, once for all of them.
    """
    kind = _kind(context, case)
    same = [one for one in context.cases if one.op == case.op and _kind(context, one) == kind]
    first = next((one for one in same if not one.edge), case)
    return first, [one for one in same if one is not case]


def _kind(context: Context, case: Case) -> str:
    args = context.arguments(case)
    tensors = [(str(place), tensor.dim(), str(tensor.dtype), tensor.requires_grad) for place, tensor in places(args)]
    constants = [[repr(one) for one in _leaves(arg) if not isinstance(one, Tensor)] for arg in args]
    return repr((tensors, constants, sorted((name, repr(value)) for name, value in case.kwargs.items())))


def _leaves(arg: Any) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(arg, (list, tuple)):
        for one in arg:
            yield from _leaves(one)
    else:
        yield arg
