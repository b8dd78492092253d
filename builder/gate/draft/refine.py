"""What is found out about an op after a call succeeded: sizes that differ, gradients, fake tensors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from types import BuiltinFunctionType
from typing import Any

from builder.gate.context import resolve
from builder.gate.draft.guesses import SIZE, Candidate, Guess, tensors_of, with_size
from builder.gate.draft.result import NO_FAKE_KERNEL, shortened
from builder.gate.draft.trial import CHECK_SECONDS, Returned, TrialProcess

#: Sizes of dimensions, instead of SIZE for each: a case with equal sizes does not show that two are mixed up.
_SIZES = (5, 3, 6, 2, 7, 3)
#: The smallest size that is changed: a size of 1 would mean that the dimension is repeated.
_SMALLEST = 3
#: Numbers, instead of one number for all: a case with equal numbers does not show that two are mixed up, and a case
#: that multiplies with 1 does not show that an op does nothing.
_NUMBERS = (0.5, 2.0, 0.25, 1.5, 0.75, 1.25)


def with_different_numbers(candidate: Candidate) -> Candidate:
    """Return the arguments with floating-point numbers that differ."""
    numbers = itertools.cycle(_NUMBERS)
    # An integer or a bool that equals 1.0 says something.
    return tuple(
        ("value", next(numbers)) if one[0] == "value" and type(one[1]) is float and one[1] in (0.5, 1.0) else one
        for one in candidate
    )


def varied(process: TrialProcess, candidate: Candidate, fact: Returned) -> tuple[Candidate, Returned]:
    """Return the arguments with sizes and numbers that differ, as far as the op accepts them, and what it returned."""
    for changed in _with_different_sizes(candidate):
        trial = process.call("plain", changed)
        if not trial.error:
            candidate, fact = changed, trial.fact
            break
    # A tensor may have another size than the others have if the op accepts a smaller and a larger one. An op that
    # compares no sizes accepts only one of them: with the other, it reads past the end of a tensor.
    # A GPU has no guard pages that show it.
    for at, guess in enumerate(candidate if process.device == "cpu" else ()):
        others = {size for other in candidate if other is not guess for one in tensors_of(other) for size in one[2]}
        for axis, size in enumerate(guess[2] if guess[0] == "tensor" else ()):
            if size in others and size >= _SMALLEST:
                larger, smaller = (
                    with_size(candidate, (at, axis), new) for new in (max(others | {size}) + 1, size - 1)
                )
                trial = process.call("plain", larger)
                if not trial.error and not process.call("plain", smaller).error:
                    candidate, fact = larger, trial.fact
    trial = process.call("plain", with_different_numbers(candidate))
    return (candidate, fact) if trial.error else (with_different_numbers(candidate), trial.fact)


def _with_different_sizes(candidate: Candidate) -> Iterator[Candidate]:
    ranks = range(1 + max((len(guess[2]) for guess in candidate if guess[0] == "tensor"), default=0))
    # All dimensions, counted from the first or from the last one; then one of them.
    for sizes in [dict(enumerate(_SIZES)), *({position: _SIZES[min(position, 1)]} for position in ranks)]:
        for from_end in (False, True):
            changed = tuple(_resized(guess, sizes, from_end) for guess in candidate)
            if changed != candidate:
                yield changed


def _resized(guess: Guess, sizes: dict[int, int], from_end: bool) -> Guess:
    if guess[0] == "tensors":
        return ("tensors", *(_resized(one, sizes, from_end) for one in guess[1:]))
    if guess[0] != "tensor":
        return guess
    _, dtype, shape, content = guess
    where = [len(shape) - 1 - at if from_end else at for at in range(len(shape))]
    return (
        "tensor",
        dtype,
        tuple(sizes.get(at, old) if old == SIZE else old for at, old in zip(where, shape)),
        content,
    )


def facts_about(process: TrialProcess, candidate: Candidate) -> dict[str, Any]:
    """Return what the case must say besides the inputs: `grad`, `untraced`, `dtypes`."""
    if not any(map(tensors_of, candidate)):
        return {"grad": [], "untraced": "the op has no tensor argument"}
    fake = process.call("fake", candidate, CHECK_SECONDS)
    double = process.call("plain", candidate, dtype="float64")
    untraced = of_compiled_module(process.op)
    if not untraced and "::" not in process.op and fake.error:
        untraced = f"torch cannot trace the function: with fake tensors it raises {fake.error}"
    elif not untraced and fake.error:
        missing = re.match("UnsupportedOperatorException|NotImplementedError", fake.error)  # NotImplementedError: 2.0
        what = NO_FAKE_KERNEL if missing else "the fake kernel fails"
        untraced = f"{what}: with fake tensors the op raises {fake.error}"
    has_float = any(one[1] == "float" for guess in candidate for one in tensors_of(guess))
    return {
        "grad": process.call("gradient", candidate).fact or [],
        "untraced": shortened(untraced, 300),
        "dtypes": ["float64"] if has_float and not double.error else [],
    }


def of_compiled_module(op: str) -> str:
    """Return why torch cannot trace a function of a compiled module, such as one of pybind11; "" for any other op."""
    if "::" in op or not isinstance(resolve(op), BuiltinFunctionType):
        return ""
    return "torch cannot trace a function of a compiled module; an op of TORCH_LIBRARY can be traced"
