"""Ways to call a case: as a function of its tensors, together with cases that differ only in sizes, or just once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.context import Context, iter_tensors
from builder.gate.imports.cases_file import load_cases
from builder.gate.outcome import Spec


class CallModule(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """A module around a call, because torch.export takes modules."""

    def __init__(self, call: Callable[[Sequence[Tensor]], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, tensors: list[Tensor]) -> Any:  # noqa: ANN401
        """Call it."""
        return self.call(tensors)


def tensor_function(context: Context, case: Case, args: Sequence[Any]) -> Callable[[Sequence[Tensor]], Any]:
    """Return the case's call as a function of its tensors; all other arguments are constants, as in a model."""
    function, kwargs = context.function(case), dict(case.kwargs)
    # The layout has strings instead of positions: under dynamic=True a position would become a symbol, and torch 2.2
    # and 2.6 cannot trace an assignment to a list item whose index is a symbol.
    layout = [_layout_of(arg) for arg in args]

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


def _layout_of(arg: Any) -> tuple[str, Any]:  # noqa: ANN401
    """Return the kind of an argument ("tensor", "list" or "constant"), and its items or its value."""
    if isinstance(arg, Tensor):
        return "tensor", None
    if isinstance(arg, (list, tuple)) and any(isinstance(item, Tensor) for item in arg):
        return "list", [("tensor", None) if isinstance(item, Tensor) else ("constant", item) for item in arg]
    return "constant", arg


def same_up_to_sizes(context: Context, case: Case) -> tuple[Case, list[Case]]:
    """Return the first of the op's cases that differ from this one only in sizes, and all of them but this one.

    Such cases have the same constants, ranks and dtypes. Checks with dynamic sizes run once, for the first case.
    """
    signature = _signature(context, case)
    same = [one for one in context.cases if one.op == case.op and _signature(context, one) == signature]
    first = next((one for one in same if not one.edge), case)
    return first, [one for one in same if one is not case]


def _signature(context: Context, case: Case) -> str:
    args = context.arguments(case)
    tensors = [
        (str(path), tensor.dim(), str(tensor.dtype), tensor.requires_grad) for path, tensor in iter_tensors(args)
    ]
    constants = [[repr(one) for one in _leaves(arg) if not isinstance(one, Tensor)] for arg in args]
    return repr((tensors, constants, sorted((name, repr(value)) for name, value in case.kwargs.items())))


def _leaves(arg: Any) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(arg, (list, tuple)):
        for one in arg:
            yield from _leaves(one)
    else:
        yield arg


def call_first(root: str, step: Callable[[str], object]) -> str:
    """Call the op of the first case that works on the CPU; return the name of the op, or "".

    The check "import-order" uses this to test that an op runs. If an op raises, the next case is tried: other checks
    report the exception. `step` is called with the name of the op before each call.
    """
    if not Path(root, "cases.py").is_file():
        return ""
    cases = load_cases(Path(root)).cases
    context = Context(Spec("", []), cases)
    torch.set_num_threads(1)
    for case in cases:
        if case.edge or "cpu" not in case.devices:
            continue
        try:
            args = context.arguments(case, device="cpu", grad=False)
            context.function(case)
            step(case.op)
            context.call(case, args)
        except Exception:  # noqa: BLE001, S112 (CaseError among them; other checks report it)
            continue
        return case.op
    return ""
