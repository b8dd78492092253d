"""What a check gets: the spec, the cases, and functions that call ops and flatten results.

A check is a function `(context, case) -> list of outcomes` that runs in a forked child. If it crashes, hangs or exceeds
its memory, the scheduler reports that with op, case and check. An exception that it does not catch becomes a failed
outcome of the check. It runs only for cases that claim the check (`not_claimed`) and the device (`devices`).
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from builder.gate.case import Case, Make
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
#: Numbers that only a run knows, in a traced call.
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class CaseError(Exception):
    """An error in cases.py: the inputs or the reference raise an exception, or the op does not exist."""


class TensorPath(NamedTuple):
    """The position of a tensor among the arguments, and its index if the argument is a list or tuple."""

    position: int
    item: int | None = None

    def __str__(self) -> str:
        return f"argument {self.position}" if self.item is None else f"argument {self.position}[{self.item}]"


@dataclass(frozen=True)
class Context:
    """One task, as a check sees it. The fork server has one without a task, which every child inherits."""

    spec: Spec
    #: Every case of cases.py, in its order.
    cases: Sequence[Case] = ()
    #: The discovered ops, `namespace::name.overload` and dotted paths.
    ops: Sequence[str] = ()
    check: str = ""
    #: "cpu" or "cuda": the default device of `arguments`.
    device: str = "cpu"
    #: Records the step that begins now ("float16, argument 2 strided"); a crash is reported at this step.
    step: Callable[[str], None] = lambda _what: None
    #: The file of results that this task writes, or that the judge reads; else an empty path.
    data: Path = Path()
    folder: Path = Path()

    def overload(self, case: Case) -> Any | None:  # noqa: ANN401
        """Return the `torch._ops.OpOverload` of the case, or None for a Python callable."""
        found = resolve(case.op)
        if isinstance(found, torch._ops.OpOverloadPacket):
            overloads = found.overloads()
            return getattr(found, "default" if "default" in overloads else overloads[0])
        return found if isinstance(found, torch._ops.OpOverload) else None

    def arguments(
        self, case: Case, dtype: torch.dtype | None = None, device: str | None = None, *, grad: bool = True
    ) -> tuple[Any, ...]:
        """Return new positional arguments, the same numbers for every call; without `grad` none requires a gradient.

        The default of `dtype` is the first one of the case. Raises CaseError if the inputs of the case raise an
        exception.
        """
        make = Make(device or self.device, dtype or case.dtypes[0])
        try:
            made = tuple(case.inputs(make))
        except Exception as error:
            raise CaseError(f"the inputs of the case raise {sentence(error)}: correct cases.py") from error
        return made if grad else detached(made)

    def call(self, case: Case, args: Sequence[Any]) -> Any:  # noqa: ANN401
        """Call the op with these arguments and the keyword arguments of the case."""
        return placed(resolve(case.op), args)(*args, **case.kwargs)

    def expected(self, case: Case, args: Sequence[Any]) -> Any:  # noqa: ANN401
        """Return the result of the reference, which gets 16-bit floats as float32 to be more precise than the op."""
        if case.reference is None:
            raise CaseError("the case has no reference")
        try:
            with _without_the_op(case.op):
                return case.reference(*widened(args), **case.kwargs)
        except CaseError:
            raise
        except Exception as error:
            raise CaseError(f"the reference of the case raises {sentence(error)}: correct cases.py") from error

    def passed(self, case: Case, figure: str = "", **evidence: Any) -> list[Outcome]:  # noqa: ANN401
        """Return one passed outcome of the case; `figure` is a short number or "", evidence must be JSON data."""
        return [Outcome(self.check, case.op, case.name, PASSED, figure, evidence=evidence)]

    def failed(self, case: Case | None, reason: str, **evidence: Any) -> list[Outcome]:  # noqa: ANN401
        """Return one failed outcome of the case; `reason` is one sentence: what is wrong and what to do.

        Without a case it is one of the extension.
        """
        op, name = (case.op, case.name) if case else ("", "")
        return [Outcome(self.check, op, name, FAILED, reason, evidence=evidence)]

    def not_run(self, case: Case, reason: str, **evidence: Any) -> list[Outcome]:  # noqa: ANN401
        """Return one outcome of the case without a result; `reason` says why."""
        return [Outcome(self.check, case.op, case.name, NOT_RUN, reason, evidence=evidence)]


def placed(target: Any, args: Sequence[Any]) -> Any:  # noqa: ANN401
    """Return what `resolve` found; a module is moved to the device and dtype of the first floating-point tensor."""
    like = next((one for _, one in iter_tensors(args) if one.is_floating_point()), None)
    return target.to(like.device, like.dtype) if isinstance(target, torch.nn.Module) and like is not None else target


@contextmanager
def _without_the_op(op: str) -> Iterator[None]:
    """Raise CaseError if the code inside calls the op: such a reference agrees with any result.

    A function of nanobind is not seen, because CPython reports only calls of its own kinds of functions.
    """
    registered = op.replace("::", ".").split(".")[:2] if "::" in op else []
    # The judge never imports the extension.
    loaded = not registered and not op.endswith(")") and op.partition(".")[0] in sys.modules
    target = resolve(op) if loaded else None
    code, called = getattr(target, "__code__", None), False

    def watch(frame: FrameType, event: str, function: object) -> None:
        nonlocal called
        if event == "c_call":
            called = called or (loaded and function is target)
        elif event == "call" and registered and frame.f_code.co_name == "__call__":
            own = frame.f_locals.get("self")
            kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
            called = called or (isinstance(own, kinds) and str(own).split(".")[:2] == registered)
        elif event == "call":
            called = called or (code is not None and frame.f_code is code)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)
    if called:
        raise CaseError("the reference calls the op itself, so it agrees with any result: write it in plain PyTorch")


def resolve(name: str) -> Any:  # noqa: ANN401
    """Return the op of `ns::op` or `ns::op.overload`, the callable of a dotted path, or a module.

    `package.Layer(4, bias=False)` is a new module of this class. Its random parameters are the same in each process.
    Raises CaseError, and what the constructor of the module raises.
    """
    try:
        if name.endswith(")"):
            return _constructed(name)
        if "::" in name:
            namespace, _, rest = name.partition("::")
            op, _, overload = rest.partition(".")
            packet = getattr(getattr(torch.ops, namespace), op)
            if overload:
                return getattr(packet, overload)
            # A single overload is called directly; a packet would first try to match its overloads.
            return getattr(packet, packet.overloads()[0]) if len(packet.overloads()) == 1 else packet
        return _dotted(name)
    except (AttributeError, ImportError) as error:
        what = "no op of this name is registered" if "::" in name else sentence(error)
        raise CaseError(f"{name}: {what}") from error


def _constructed(name: str) -> torch.nn.Module:
    try:
        call = ast.parse(name, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError
        args = [ast.literal_eval(one) for one in call.args]
        kwargs = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError):
        raise CaseError(f"{name} is not the path of a class with plain values as arguments") from None
    found = _dotted(ast.unparse(call.func))
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise CaseError(f"{ast.unparse(call.func)} is no class of torch.nn.Module: write its path without arguments")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return found(*args, **kwargs)


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
    raise CaseError(f"{name}: no such module; use the dotted path of a callable, or namespace::op")


def sentence(error: BaseException, limit: int = 300) -> str:
    """Return an exception in one line: its type and the first `limit` characters of its message."""
    text = " ".join(_plain(error).split())
    return type(error).__name__ + (f": {text[:limit]}{'…' if len(text) > limit else ''}" if text else "")


def _plain(error: BaseException) -> str:
    """Return the message; torch's messages about forks and hidden GPUs name what the gate does, and not the cause."""
    text = str(error)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "-1"  # by hide_gpus
    forked = "Cannot re-initialize CUDA in forked subprocess" in text
    if not forked and not (hidden and "No CUDA GPUs are available" in text):
        return text
    if not torch.cuda._initialized:
        if hidden:
            return "CUDA is called, and no GPU is visible where the gate calls CPU kernels"
        if torch.cuda.device_count() == 0:
            return "CUDA is called, and this machine has no GPU that torch can use"
    return "an import of the extension or of cases.py initialized CUDA: do not call CUDA at import"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype: "float32"."""
    return str(dtype).replace("torch.", "")


def flatten(result: Any) -> list[Tensor]:  # noqa: ANN401
    """Return the tensors of a result, also from tuples, lists and dicts. Numbers and bools become 0-d tensors."""
    values = (one for one in values_of(result) if not isinstance(one, SYMBOLS))
    return [one if isinstance(one, Tensor) else torch.tensor(one) for one in values]


def values_of(result: Any) -> list[Any]:  # noqa: ANN401
    """Return the tensors, numbers and bools of a result, also from tuples, lists and dicts."""
    if isinstance(result, (Tensor, bool, int, float, complex, *SYMBOLS)):
        return [result]
    if isinstance(result, dict):
        result = [result[key] for key in sorted(result, key=str)]
    if isinstance(result, (tuple, list)):
        return [value for one in result for value in values_of(one)]
    return []


def iter_tensors(args: Sequence[Any]) -> Iterator[tuple[TensorPath, Tensor]]:
    """Yield every tensor among the arguments with its path, also from lists and tuples."""
    for position, arg in enumerate(args):
        if isinstance(arg, Tensor):
            yield TensorPath(position), arg
        elif isinstance(arg, (list, tuple)):
            for index, one in enumerate(arg):
                if isinstance(one, Tensor):
                    yield TensorPath(position, index), one


def map_tensors(args: Sequence[Any], change: Callable[[TensorPath, Tensor], Tensor]) -> tuple[Any, ...]:
    """Return the arguments with every tensor changed."""

    def one(position: int, arg: Any) -> Any:  # noqa: ANN401
        if isinstance(arg, Tensor):
            return change(TensorPath(position), arg)
        if not isinstance(arg, (list, tuple)) or not any(isinstance(item, Tensor) for item in arg):
            return arg
        items = enumerate(arg)
        return type(arg)([change(TensorPath(position, i), x) if isinstance(x, Tensor) else x for i, x in items])

    return tuple(one(position, arg) for position, arg in enumerate(args))


def replace_tensor(args: Sequence[Any], path: TensorPath, tensor: Tensor) -> tuple[Any, ...]:
    """Return the arguments with one tensor replaced."""
    return map_tensors(args, lambda here, old: tensor if here == path else old)


def detached(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with every tensor detached."""
    return map_tensors(args, lambda _, tensor: tensor.detach())


def widened(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with 16-bit floats as float32."""
    return map_tensors(args, lambda _, tensor: tensor.float() if tensor.dtype in SIXTEEN_BITS else tensor)
