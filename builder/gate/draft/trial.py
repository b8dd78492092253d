"""Calls an op with guesses in a separate process, which may crash or hang; the caller then starts another one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from types import FunctionType
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from builder.gate.case import Case, Make
from builder.gate.checks.fake_tensor import fake
from builder.gate.checks.guard_pages import GuardPages, digest
from builder.gate.checks.layouts import strided
from builder.gate.context import (
    CaseError,
    Context,
    dtype_name,
    flatten,
    iter_tensors,
    map_tensors,
    placed,
    resolve,
    sentence,
    values_of,
)
from builder.gate.draft.guesses import Candidate, Guess, Parameter, guess_of, make
from builder.gate.outcome import FAILED, Spec
from builder.gate.system import rlimits
from builder.gate.system.nvidia import hide_gpus
from builder.gate.system.process_end import signal_name

#: Limits of one call. Inputs are tiny: an op that needs more time hangs.
CALL_SECONDS = 5.0
MEMORY = 2 << 30
#: Seconds for a call with fake tensors, and for the check "fake".
CHECK_SECONDS = 60.0
#: A result with more elements comes from arguments that are not typical.
_MOST_ELEMENTS = 1 << 22
#: The value of an argument that is not given.
OMITTED = object()
_FORK = multiprocessing.get_context("fork")
#: Seconds between the end of a process's pipe and the end of the process.
_END_SECONDS = 1.0


class Recorded(NamedTuple):
    """A call: an op, its positional arguments and its keyword arguments."""

    op: str
    given: Sequence[Guess]
    named: Mapping[str, Guess]


class Returned(NamedTuple):
    """What a call returned: each value with its dtype and shape, or its type and None, and the type of all."""

    values: Sequence[tuple[str, Optional[tuple[int, ...]]]]  # evaluated by Python 3.9
    type: str
    changed: Sequence[int]  # the positions of the arguments that the call wrote to


@dataclass(frozen=True)
class Trial:
    """The result of one call: `error` is empty if it succeeded, and `fact` is what the step returned."""

    error: str = ""
    fact: Any = None
    crashed: bool = False  # whether the call ended the process, or did not end


class TrialProcess:
    """A process that calls one op again and again, and is started again when a call ends it."""

    def __init__(self, op: str, parameters: Sequence[Parameter], device: str = "cpu") -> None:
        self.op, self.device, self._parameters = op, device, parameters
        self._seconds = CALL_SECONDS * (20 if device == "cuda" else 1)  # the first call on CUDA starts it
        self._process: ForkProcess | None = None

    def call(self, step: str, candidate: Candidate, seconds: float = 0.0, **options: Any) -> Trial:  # noqa: ANN401
        """Run a step, a method of `Caller`, with these arguments; a crash or a time-out is an error of the call."""
        if not self._process:
            self._pipe, theirs = _FORK.Pipe()
            told = (self.op, self._parameters, self.device, theirs, os.getpid())
            self._process = _FORK.Process(target=_serve, args=told, daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((step, candidate, options))
            if not self._pipe.poll(seconds := seconds or self._seconds):
                self.close()
                return Trial(f"the call did not end within {seconds:.0f} s", crashed=True)
            error, fact = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_END_SECONDS)
            status = self._process.exitcode
            self.close()
            how = f" with {signal_name(-status)}" if status and status < 0 else ""
            return Trial(f"the call ends the process{how}", crashed=True)
        if "CUDA error" in error:
            self.close()  # after an illegal access, every call of CUDA in this process fails
        return Trial(error, fact)

    def close(self) -> None:
        """End the process, and those that it started."""
        if self._process and self._process.pid:
            rlimits.kill_group(self._process.pid)
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = None


def _serve(op: str, parameters: Sequence[Parameter], device: str, pipe: Connection, parent: int) -> None:
    os.setsid()
    rlimits.exit_with_parent(parent)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    torch.set_num_threads(1)
    if device == "cpu":
        hide_gpus()
        rlimits.limit_added_memory(MEMORY)
    caller = Caller(op, parameters, device)
    while True:
        step, candidate, options = pipe.recv()
        try:
            answer = ("", getattr(caller, step)(candidate, **options))
        except BaseException as error:  # noqa: BLE001 (an op may raise anything)
            answer = (sentence(error, 1500), None)
        pipe.send(answer)


class Caller:
    """Calls one op. Each public method is a step that returns plain data or raises."""

    def __init__(self, op: str, parameters: Sequence[Parameter], device: str) -> None:
        self._op, self._function, self._parameters, self._device = op, resolve(op), parameters, device
        self._guard = GuardPages()

    def plain(self, candidate: Candidate, dtype: str = "float32") -> Returned:
        """Call it with inputs between guard pages."""
        values = self._values(candidate, Make(self._device, getattr(torch, dtype)))
        before = [digest(tensor) for _, tensor in iter_tensors(values)]
        changed: set[int] = set()
        for at_end in (True, False) * 3:  # a write past an allocation does not show in each call
            guarded = map_tensors(values, lambda _, one: self._guard.copy(one, at_end=at_end))  # noqa: B023
            with torch.no_grad():
                result = self._call(guarded)
            after = [(path.position, digest(tensor)) for path, tensor in iter_tensors(guarded)]
            changed |= {position for (position, new), old in zip(after, before) if new != old}
        compiled = not isinstance(self._function, (FunctionType, torch.nn.Module))
        if compiled and before and not changed and (result is None or (type(result) is int and result in (0, 1))):
            raise ValueError("the call changes no argument and returns no tensor, as if its kernel needs a GPU")
        sizes = [one.numel() for one in flatten(result)]
        if max(sizes, default=1) > _MOST_ELEMENTS or not any(sizes or [1]):
            raise ValueError("the result has no elements, or millions: the arguments are not typical")
        returned = [
            (dtype_name(one.dtype), tuple(one.shape)) if isinstance(one, Tensor) else (type(one).__name__, None)
            for one in values_of(result)
        ]
        return Returned(returned, type(result).__name__, sorted(changed))

    def gradient(self, candidate: Candidate) -> list[int]:
        """Return the positions of all arguments of floating point, if a gradient can be computed for one of them.

        The reference then shows which of them the op forgets.
        """
        values = map_tensors(self._values(candidate), lambda _, one: one.requires_grad_(one.is_floating_point()))
        outputs = [one for one in flatten(self._call(values)) if one.requires_grad]
        leaves = {path.position: one for path, one in iter_tensors(values) if one.requires_grad}
        if not outputs or not leaves:
            return []
        seeds = [torch.ones_like(one) for one in outputs]
        found = torch.autograd.grad(outputs, list(leaves.values()), seeds, allow_unused=True)
        return sorted(leaves) if any(one is not None for one in found) else []

    def fake(self, candidate: Candidate) -> None:
        """Call it with fake tensors."""
        with torch.no_grad(), FakeTensorMode(shape_env=ShapeEnv()) as mode:
            self._call(map_tensors(self._values(candidate), lambda _, one: mode.from_tensor(one)))

    def with_strides(self, candidate: Candidate) -> None:
        """Call it with tensors that are not contiguous."""
        with torch.no_grad():
            self._call(map_tensors(self._values(candidate), lambda _, one: strided(one) if one.dim() else one))

    def register(self, _candidate: Candidate, code: str) -> None:
        """Execute the code of a fake kernel."""
        exec(code, {"torch": torch})  # noqa: S102 (written by this program)

    def check_fake(self, candidate: Candidate) -> str:
        """Return why the check "fake" of the gate fails for the case with these arguments; "" if it does not."""
        named = split(self._parameters, self._values(candidate))[1]
        case = Case(self._op, lambda maker: split(self._parameters, self._values(candidate, maker))[0], kwargs=named)
        outcomes = fake(Context(Spec("", []), [case], check="fake", device=self._device), case)
        return next((one.reason for one in outcomes if one.verdict == FAILED), "")

    def calls_inside(self, candidate: Candidate, ops: Sequence[str]) -> list[Recorded]:
        """Return the first call of each of these ops that the call and its gradient make."""
        with _CallRecorder(ops) as recorder:
            self.gradient(candidate)
        return list(recorder.found.values())

    def _values(self, candidate: Candidate, maker: Make | None = None) -> list[Any]:
        maker = maker or Make(self._device, torch.float32)
        return [OMITTED if guess[0] == "omitted" else make(guess, maker) for guess in candidate]

    def _call(self, values: Sequence[Any]) -> Any:  # noqa: ANN401
        given, named = split(self._parameters, values)
        result = placed(self._function, given)(*given, **named)
        if self._device == "cuda":
            torch.cuda.synchronize()
        return result


def split(parameters: Sequence[Parameter], values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that are given by position, and those that are given by name; none that is OMITTED."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for number, (one, value) in enumerate(zip(parameters, values)):
        if value is not OMITTED and (one.keyword or len(given) < number):
            named[one.name] = value
        elif value is not OMITTED:
            given.append(value)
    return given, named


class _CallRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not installed where types are checked
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
                with suppress(CaseError):
                    self._replace(op, resolve(op))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        name, overload = func._schema.name, func._overloadname
        op = name if overload == "default" else f"{name}.{overload}"
        if op in self._ops:
            self._note(op, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _replace(self, op: str, function: Callable[..., Any]) -> None:
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
