"""What a check is given: the spec, the cases, and how to call, to flatten and to compare.

A check is a function `(context, case) -> list of outcomes` that runs in a forked child: it may crash, hang or allocate,
and its caller will say so with op, case and check. An exception it lets out becomes a failed outcome of that check; it
need not catch what it has no better sentence for. It is asked only where the case claims the check (`not_claimed`) and
the device (`devices`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from builder.gate.case import Case, Make
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec

_SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class CaseError(Exception):
    """cases.py is at fault, not the extension: its inputs or its reference raise, its op does not exist."""


class Place(NamedTuple):
    """Where a tensor lies among the arguments: the position, and the item where the argument is a list of tensors."""

    position: int
    item: int | None = None

    def __str__(self) -> str:
        return f"argument {self.position}" if self.item is None else f"argument {self.position}[{self.item}]"


@dataclass(frozen=True)
class Context:
    """One run of the gate, as a check sees it.

    Attributes:
        spec: what is to be proven.
        cases: every case of cases.py, in its order.
        device: "cpu" or "cuda": where `arguments` lie unless told otherwise.
        guarded: whether this process runs under glibc's heap checks.
        ops: the ops discovered, `namespace::name.overload` and dotted paths.
        doing: tell what is done now ("float16, argument 2 strided"): if the process dies, that is where.

    """

    spec: Spec
    cases: Sequence[Case] = ()
    device: str = "cpu"
    guarded: bool = False
    ops: Sequence[str] = ()
    doing: Callable[[str], None] = lambda _what: None

    def dtype(self, case: Case) -> torch.dtype:
        """The dtype that checks take which look at one only: the first the case claims."""
        return case.dtypes[0]

    def function(self, case: Case) -> Callable[..., Any]:
        """What the case calls: an overload, an overload packet or a Python callable. Raises CaseError if not there."""
        found: Callable[..., Any] = resolve(case.op)
        return found

    def overload(self, case: Case) -> Any | None:  # noqa: ANN401
        """The `torch._ops.OpOverload` of the case, or None for a Python callable."""
        found = self.function(case)
        if isinstance(found, torch._ops.OpOverloadPacket):
            overloads = found.overloads()
            return getattr(found, "default" if "default" in overloads else overloads[0])
        return found if isinstance(found, torch._ops.OpOverload) else None

    def arguments(
        self, case: Case, dtype: torch.dtype | None = None, device: str | None = None, *, grad: bool = True
    ) -> tuple[Any, ...]:
        """Fresh positional arguments, the same numbers at every call; without `grad` no tensor asks for a gradient.

        Raises:
            CaseError: the case's inputs raise.

        """
        make = Make(device or self.device, dtype or self.dtype(case))
        try:
            made = tuple(case.inputs(make))
        except Exception as error:
            raise CaseError(f"inputs of the case raise {sentence(error)}: correct them in cases.py") from error
        return made if grad else detached(made)

    def call(self, case: Case, args: Sequence[Any]) -> Any:  # noqa: ANN401
        """The op's answer to these arguments and the case's keyword arguments."""
        return self.function(case)(*args, **case.kwargs)

    def expected(self, case: Case, args: Sequence[Any]) -> Any:  # noqa: ANN401
        """The reference's answer. It sees 16-bit floats as float32: their own arithmetic is no measure."""
        if case.reference is None:
            raise CaseError("the case has no reference")
        try:
            return case.reference(*widened(args), **case.kwargs)
        except Exception as error:
            raise CaseError(f"the reference of the case raises {sentence(error)}: correct it in cases.py") from error

    def outcome(self, check: str, case: Case, verdict: str, reason: str = "", **evidence: Any) -> Outcome:  # noqa: ANN401
        """An outcome of this case; evidence must be JSON data."""
        return Outcome(check, case.op, case.name, verdict, reason, evidence=dict(evidence))

    def passed(self, check: str, case: Case, figure: str = "", **evidence: Any) -> Outcome:  # noqa: ANN401
        """The check holds; `figure` is a short number or nothing."""
        return self.outcome(check, case, PASSED, figure, **evidence)

    def failed(self, check: str, case: Case, reason: str, **evidence: Any) -> Outcome:  # noqa: ANN401
        """The check does not hold: one sentence that says what is wrong and what to do."""
        return self.outcome(check, case, FAILED, reason, **evidence)

    def not_run(self, check: str, case: Case, reason: str, **evidence: Any) -> Outcome:  # noqa: ANN401
        """Nothing was found out, and why."""
        return self.outcome(check, case, NOT_RUN, reason, **evidence)


def resolve(name: str) -> Any:  # noqa: ANN401
    """`ns::op` and `ns::op.overload` to the op, `package.module.function` to the callable. Raises CaseError."""
    try:
        if "::" in name:
            namespace, _, rest = name.partition("::")
            op, _, overload = rest.partition(".")
            packet = getattr(getattr(torch.ops, namespace), op)
            if overload:
                return getattr(packet, overload)
            # One overload: called directly, as the dispatcher does, not tried out one after the other.
            return getattr(packet, packet.overloads()[0]) if len(packet.overloads()) == 1 else packet
        return _dotted(name)
    except (AttributeError, ImportError) as error:
        what = "nothing of this name is registered" if "::" in name else sentence(error)
        raise CaseError(f"{name}: {what}") from error


def _dotted(name: str) -> Any:  # noqa: ANN401
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        if callable(found):
            return found
        raise CaseError(f"{name} is not callable")
    raise CaseError(f"{name}: no such module; write the dotted path of a callable or namespace::op")


def sentence(error: BaseException, limit: int = 300) -> str:
    """An exception in one line: its type and the first lines of its message."""
    text = " ".join(str(error).split())
    return type(error).__name__ + (f": {text[:limit]}{'…' if len(text) > limit else ''}" if text else "")


def flatten(result: Any) -> list[Tensor]:  # noqa: ANN401
    """The tensors of an answer in order: of tuples, lists and dicts too. Numbers and bools become 0-d tensors."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (bool, int, float, complex)):
        return [torch.tensor(result)]
    if isinstance(result, dict):
        result = [result[key] for key in sorted(result, key=str)]
    if isinstance(result, (tuple, list)):
        return [tensor for one in result for tensor in flatten(one)]
    return []


def places(args: Sequence[Any]) -> Iterator[tuple[Place, Tensor]]:
    """Every tensor among the arguments, with its place; lists and tuples of tensors are looked into."""
    for position, arg in enumerate(args):
        if isinstance(arg, Tensor):
            yield Place(position), arg
        elif isinstance(arg, (list, tuple)):
            for index, one in enumerate(arg):
                if isinstance(one, Tensor):
                    yield Place(position, index), one


def mapped(args: Sequence[Any], change: Callable[[Place, Tensor], Tensor]) -> tuple[Any, ...]:
    """The arguments with every tensor changed."""

    def one(position: int, arg: Any) -> Any:  # noqa: ANN401
        if isinstance(arg, Tensor):
            return change(Place(position), arg)
        if isinstance(arg, (list, tuple)) and any(isinstance(item, Tensor) for item in arg):
            return type(arg)(
                [change(Place(position, i), item) if isinstance(item, Tensor) else item for i, item in enumerate(arg)]
            )
        return arg

    return tuple(one(position, arg) for position, arg in enumerate(args))


def replaced(args: Sequence[Any], place: Place, tensor: Tensor) -> tuple[Any, ...]:
    """The arguments with one tensor exchanged."""
    return mapped(args, lambda here, old: tensor if here == place else old)


def detached(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, no tensor asking for a gradient."""
    return mapped(args, lambda _, tensor: tensor.detach())


def widened(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, 16-bit floats as float32."""
    return mapped(args, lambda _, tensor: tensor.float() if tensor.dtype in _SIXTEEN_BITS else tensor)


def compare(
    actual: Any,  # noqa: ANN401
    expected: Any,  # noqa: ANN401
    case: Case,
    dtype: torch.dtype,
    subject: str = "the result",
    *,
    scaled: bool = False,
) -> str | None:
    """What differs, in a sentence with the largest error and where; None where they agree within the tolerance.

    Tensors, or any nesting of them. Shapes must be equal, and dtypes, except that a float32 expectation stands for a
    16-bit answer. NaN equals NaN. The tolerance is the case's for `dtype`:
    |actual - expected| <= atol + rtol * |expected|. `scaled` is for sums of many terms, as gradients are: rtol counts
    from the largest number expected, since terms that cancel leave their rounding errors behind.
    """
    have, want = flatten(actual), flatten(expected)
    if len(have) != len(want):
        return f"{subject} holds {len(have)} tensors, {len(want)} are expected"
    for index, (one, other) in enumerate(zip(have, want)):
        name = subject if len(have) == 1 else f"{subject}[{index}]"
        fault = _compare_tensors(one.detach().cpu(), other.detach().cpu(), case, dtype, name, scaled)
        if fault:
            return fault
    return None


def _compare_tensors(have: Tensor, want: Tensor, case: Case, dtype: torch.dtype, name: str, scaled: bool) -> str | None:
    if have.shape != want.shape:
        return f"{name} has shape {tuple(have.shape)}, {tuple(want.shape)} is expected"
    if have.dtype != want.dtype and not (have.dtype in _SIXTEEN_BITS and want.dtype == torch.float32):
        return f"{name} is {have.dtype}, {want.dtype} is expected".replace("torch.", "")
    if have.numel() == 0 or torch.equal(have, want):
        return None
    if not (have.is_floating_point() or have.is_complex()):
        wrong = have != want
        allowed, size = "integers and bools must be equal", (have.double() - want.double()).abs()
    else:
        rtol, atol = case.tolerance(dtype)
        wide = torch.complex128 if have.is_complex() else torch.float64
        have, want = have.to(wide), want.to(wide)
        if scaled:
            atol += rtol * float(torch.nan_to_num(want.abs(), nan=0.0, posinf=0.0).max())
        wrong = ~torch.isclose(have, want, rtol=rtol, atol=atol, equal_nan=True)
        allowed, size = f"allowed is {atol:g} + {rtol:g} of the expected", (have - want).abs()
    if not bool(wrong.any()):
        return None
    # NaN against a number is the worst of all: argmax takes it, as infinity.
    size = torch.where(wrong, torch.nan_to_num(size, nan=float("inf"), posinf=float("inf")), torch.zeros_like(size))
    worst = int(size.argmax())
    where = _unravel(worst, have.shape)
    got, due = have.reshape(-1)[worst].item(), want.reshape(-1)[worst].item()
    return (
        f"{name} is {got:.6g} at {where} where {due:.6g} is expected, {int(wrong.sum())} of {have.numel()} elements "
        f"differ, the largest by {float(size.reshape(-1)[worst]):.3g} ({allowed})"
    )


def largest_error(actual: Any, expected: Any) -> float:  # noqa: ANN401
    """The largest difference of two answers that have the same shapes; 0.0 where there is nothing to compare."""
    worst = 0.0
    for one, other in zip(flatten(actual), flatten(expected)):
        if one.shape == other.shape and one.numel() and not one.is_complex():
            error = float((one.detach().double().cpu() - other.detach().double().cpu()).abs().max())
            worst = error if math.isnan(error) else max(worst, error)
    return worst


def _unravel(index: int, shape: Sequence[int]) -> list[int]:
    where: list[int] = []
    for size in reversed(shape):
        where.append(index % size)
        index //= size
    return where[::-1]
