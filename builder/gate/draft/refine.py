"""What is found out about an op after a call succeeded: sizes that differ, gradients, layouts, a fake kernel."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from types import BuiltinFunctionType
from typing import Any

from builder.gate.check_table import CHECKS
from builder.gate.context import resolve
from builder.gate.draft.guesses import SIZE, Guess
from builder.gate.draft.result import NO_FAKE_KERNEL, TRACING_CHECKS, shortened
from builder.gate.draft.search import Candidate
from builder.gate.draft.trial import CHECK_SECONDS, Trial, TrialProcess

#: Sizes of dimensions, instead of SIZE for each: a case with equal sizes does not show that two are mixed up.
_SIZES = (5, 3, 6, 2, 7, 3)

#: Numbers, instead of one number for all: a case with equal numbers does not show that two are mixed up, and a case
#: that multiplies with 1 does not show that an op does nothing.
_NUMBERS = (0.5, 2.0, 0.25, 1.5, 0.75, 1.25)


def with_different_numbers(
    process: TrialProcess, candidate: Candidate, fact: dict[str, Any], *, called: bool
) -> tuple[Candidate, dict[str, Any]]:
    """Return the arguments with floating-point numbers that differ, if the op accepts them, and what it returned.

    `called` is whether the op can be called here; if not, the numbers are not tried.
    """

    def says_nothing(guess: Guess) -> bool:  # an integer or a bool that equals 1.0 says something
        return guess[0] == "value" and isinstance(guess[1], float) and guess[1] in (_NUMBERS[0], 1.0)

    numbers = itertools.cycle(_NUMBERS)
    changed = tuple(("value", next(numbers)) if says_nothing(guess) else guess for guess in candidate)
    if changed == candidate or not called:
        return changed, fact
    trial = process.call("plain", changed)
    return (candidate, fact) if trial.error else (changed, trial.fact)


def with_different_sizes(
    process: TrialProcess, candidate: Candidate, fact: dict[str, Any], *, from_end: bool = False
) -> tuple[Candidate, dict[str, Any]]:
    """Return the arguments with sizes that differ, as far as the op accepts them, and what the call returned.

    `from_end` is whether the last dimensions of the tensors probably agree; else it is the first ones.
    """
    ranks = range(1 + max((len(guess[2]) for guess in candidate if guess[0] == "tensor"), default=0))
    # All dimensions, counted from the first or from the last one; then one of them.
    patterns = [dict(enumerate(_SIZES)), *({position: _SIZES[min(position, 1)]} for position in ranks)]
    for sizes in patterns:
        for direction in (from_end, not from_end):
            changed = _resized(candidate, sizes, direction)
            trial = process.call("plain", changed) if changed != candidate else None
            if trial and not trial.error:
                return changed, trial.fact
    return candidate, fact


def _resized(candidate: Candidate, sizes: dict[int, int], from_end: bool) -> Candidate:
    def resized(guess: Guess) -> Guess:
        if guess[0] == "tensors":
            return ("tensors", *map(resized, guess[1:]))
        if guess[0] != "tensor":
            return guess
        rank = len(guess[2])
        where = [rank - 1 - at if from_end else at for at in range(rank)]
        shape = tuple(sizes.get(at, old) if old == SIZE else old for at, old in zip(where, guess[2]))
        return ("tensor", guess[1], shape, guess[3])

    return tuple(map(resized, candidate))


def facts_about(process: TrialProcess, op: str, candidate: Candidate) -> dict[str, Any]:
    """Return what the case must say besides the inputs: `grad`, `remark`, `contiguous_only`, `untraced`."""
    if not any(map(_tensors, candidate)):
        return {"grad": [], "contiguous_only": False, "untraced": "the op has no tensor argument"}
    gradient = process.call("gradient", candidate)
    strided = process.call("accepts", candidate, how="strided")
    fake = process.call("accepts", candidate, CHECK_SECONDS, how="fake")
    double = process.call("plain", candidate, dtype="float64")
    untraced = of_compiled_module(op)
    if not untraced and "::" not in op and fake.error:
        untraced = f"torch cannot trace the function: with fake tensors it raises {fake.error}"
    elif not untraced and fake.error:
        missing = re.match("UnsupportedOperatorException|NotImplementedError", fake.error)  # NotImplementedError: 2.0
        what = NO_FAKE_KERNEL if missing else "the fake kernel fails"
        untraced = f"{what}: with fake tensors the op raises {fake.error}"
    has_float = any(one[1] == "float" for guess in candidate for one in _tensors(guess))
    return {
        "grad": gradient.fact or [],
        "remark": f"no gradient: {gradient.error}" if gradient.error else "",
        "contiguous_only": "contiguous" in strided.error,
        "untraced": shortened(untraced, 300),
        "dtypes": ["float64"] if has_float and not double.error else [],
    }


def failing_checks(
    process: TrialProcess, op: str, candidate: Candidate, empty: Candidate, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return which checks of tracing fail for the drafted cases, as `unclaimed` and `empty_unclaimed`.

    A case that claims such a check would refuse a wheel that was accepted before. A check that does not end here is
    claimed: the gate has other limits.
    """
    options = {
        "op": op,
        "empty": empty,
        "grad": facts["grad"],
        "contiguous_only": facts["contiguous_only"],
        "mutates": [] if "::" in op else facts["changed"],
    }
    found: dict[str, dict[str, str]] = {"unclaimed": {}, "empty_unclaimed": {}}
    for name in TRACING_CHECKS:
        for of_empty, reasons in enumerate(found.values()):
            if of_empty and (not empty or CHECKS[name].edges == "without"):
                continue
            trial = process.call("check", candidate, CHECK_SECONDS, name=name, of_empty=bool(of_empty), **options)
            reason = "" if trial.late else trial.error or trial.fact
            if reason:
                reasons[name] = shortened(reason.partition(" Exception raised from ")[0], 300)
    return found


def of_compiled_module(op: str) -> str:
    """Return why torch cannot trace a function of a compiled module, such as one of pybind11; "" for any other op."""
    if "::" in op or not isinstance(resolve(op), BuiltinFunctionType):
        return ""
    return "torch cannot trace a function of a compiled module; an op of TORCH_LIBRARY can be traced"


def with_empty_tensor(process: TrialProcess, candidate: Candidate, *, called: bool) -> tuple[Candidate, str]:
    """Return arguments with an empty tensor that the op accepts, and why none was accepted.

    `called` is whether the op can be called here; if not, the first arguments are returned.
    """
    # The tensors of the highest rank, all tensors, and each one.
    ranks = [max((len(one[2]) for one in _tensors(guess)), default=0) for guess in candidate]
    positions = [at for at, rank in enumerate(ranks) if rank]
    groups = [[at for at in positions if ranks[at] == max(ranks)], positions, *([at] for at in positions)]
    error = ""
    for group in groups if positions else ():
        emptied = tuple(_without_rows(guess) if at in group else guess for at, guess in enumerate(candidate))
        trial = process.call("accepts", emptied) if called else Trial()
        if not trial.error:
            return emptied, ""
        error = error or trial.error
    return (), shortened(error, 300)


def _tensors(guess: Guess) -> Sequence[Guess]:
    return guess[1:] if guess[0] == "tensors" else [guess] if guess[0] == "tensor" else []


def _without_rows(guess: Guess) -> Guess:
    if guess[0] == "tensors":
        return ("tensors", *map(_without_rows, guess[1:]))
    return ("tensor", guess[1], (0, *guess[2][1:]), guess[3]) if guess[2] else guess
