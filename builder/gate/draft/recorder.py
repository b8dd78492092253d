"""Records with which arguments a call calls other ops and functions of the extension."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

from builder.gate.context import CaseError, resolve
from builder.gate.draft.guesses import Guess, guess_of


class Recorded(NamedTuple):
    """One call: an op, its positional arguments and its keyword arguments."""

    op: str
    given: Sequence[Guess]
    named: Mapping[str, Guess]


class CallRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not installed where types are checked
    """Records the first call of each op, as a context manager in a process that calls nothing else afterwards.

    An op of the dispatcher is recorded below autograd. A function of a compiled module is replaced wherever a module
    of its package names it.
    """

    def __init__(self, ops: Sequence[str]) -> None:
        super().__init__()
        self.found: dict[str, Recorded] = {}
        self._ops = {op for op in ops if "::" in op}
        for op in ops:
            if "::" not in op:
                self._replace(op)

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Record a call of the dispatcher, and make it."""
        name, overload = func._schema.name, func._overloadname
        op = name if overload == "default" else f"{name}.{overload}"
        if op in self._ops:
            self._note(op, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _replace(self, op: str) -> None:
        try:
            function = resolve(op)
        except CaseError:
            return

        def recorded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self._note(op, args, kwargs)
            return function(*args, **kwargs)

        top = op.partition(".")[0]
        for module in [one for name, one in sys.modules.items() if name.partition(".")[0] == top]:
            for name in [name for name, value in vars(module).items() if value is function]:
                setattr(module, name, recorded)

    def _note(self, op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given, named = [guess_of(one) for one in args], {name: guess_of(one) for name, one in kwargs.items()}
        if None not in [*given, *named.values()]:
            self.found.setdefault(op, Recorded(op, given, named))  # type: ignore[arg-type]
