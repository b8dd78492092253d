"""What is found out about an op after a call succeeded: sizes that differ, gradients, fake tensors, a fake kernel."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from types import BuiltinFunctionType
from typing import Any

from builder.gate.context import resolve
from builder.gate.draft.guesses import SIZE, Candidate, Guess, Parameter, Place, tensors_of, with_size
from builder.gate.draft.result import NO_FAKE_KERNEL, shortened
from builder.gate.draft.trial import CHECK_SECONDS, Returned, TrialProcess
from builder.gate.outcome import without_overload

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
    shape = guess[2]
    where = [len(shape) - 1 - at if from_end else at for at in range(len(shape))]
    return (*guess[:2], tuple(sizes.get(at, old) if old == SIZE else old for at, old in zip(where, shape)), guess[3])


def facts_about(process: TrialProcess, candidate: Candidate) -> dict[str, Any]:
    """Return what the case must say besides the inputs: `grad`, `untraced`, `contiguous_only`, `dtypes`."""
    if not any(map(tensors_of, candidate)):
        return {"grad": [], "untraced": "the op has no tensor argument"}
    strides = process.call("with_strides", candidate).error
    fake = process.call("fake", candidate, CHECK_SECONDS)
    fails = fake.error
    if "::" not in process.op and not fails:  # a call of a compiled module may accept fake tensors and break them
        fails = str(process.call("check_fake", candidate, CHECK_SECONDS).fact or "")
    double = process.call("plain", candidate, dtype="float64")
    untraced = of_compiled_module(process.op)
    if not untraced and "::" not in process.op and fails:
        how = "with fake tensors it raises " if fake.error else ""
        untraced = f"torch cannot trace the function: {how}{fails}"
    elif not untraced and fake.error:
        missing = re.match("UnsupportedOperatorException|NotImplementedError", fake.error)  # NotImplementedError: 2.0
        what = NO_FAKE_KERNEL if missing else "the fake kernel fails"
        untraced = f"{what}: with fake tensors the op raises {fake.error}"
    has_float = any(one[1] == "float" for guess in candidate for one in tensors_of(guess))
    return {
        "grad": process.call("gradient", candidate).fact or [],
        "untraced": shortened(untraced, 300),
        "contiguous_only": "contiguous" in strides,
        "dtypes": ["float64"] if has_float and not double.error else [],
    }


def of_compiled_module(op: str) -> str:
    """Return why torch cannot trace a function of a compiled module, such as one of pybind11; "" for any other op."""
    if "::" in op or not isinstance(resolve(op), BuiltinFunctionType):
        return ""
    return "torch cannot trace a function of a compiled module; an op of TORCH_LIBRARY can be traced"


Shape = tuple[int, ...]
#: How a result is made: the tensor that it is like, its sizes, its dtype.
Made = tuple[str, str, str]
#: How much a size or a number grows in a call.
_STEP = 2


def fake_kernel(process: TrialProcess, parameters: Sequence[Parameter], candidate: Candidate, fact: Returned) -> str:
    """Return Python code that registers a fake kernel, or "" if the sizes of the results do not follow from the inputs.

    A size follows if one sum of sizes of inputs, integers and a constant fits in every call. The calls change the
    numbers in the tensors, one size or integer at a time, all equal sizes, and the rank. The check `fake` of
    the gate passes with the code.
    """
    tensors = [at for at, guess in enumerate(candidate) if guess[0] == "tensor"]
    lists = any(guess[0] == "tensors" for guess in candidate)
    if not tensors or lists or fact.changed or any(shape is None for _, shape in fact.values):
        return ""
    calls = [(candidate, _shapes(fact))]
    for changed in _changed(candidate, tensors):
        trial = process.call("plain", changed)
        if not trial.error:
            calls.append((changed, _shapes(trial.fact)))
    if len({len(shapes) for _, shapes in calls}) > 1:
        return ""
    double = process.call("plain", candidate, dtype="float64")
    made: list[Made] = []
    for number, (name, _) in enumerate(fact.values):
        follows = not double.error and (name, double.fact.values[number][0]) == ("float32", "float64")
        dtype = "float" if follows else name
        seen = [(each, shapes[number]) for each, shapes in calls]
        like = next((at for at in tensors if all(each[at][2] == shape for each, shape in seen)), None)
        shape, at = "", like
        if at is None:
            if len({len(shape) for _, shape in seen}) > 1:
                return ""
            sizes = [_size(parameters, seen, axis) for axis in range(len(seen[0][1]))]
            if "" in sizes:
                return ""
            shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
            at = next((at for at in tensors if candidate[at][1] == dtype), tensors[0])
        more = "" if candidate[at][1] == dtype else f", dtype=torch.{'float32' if dtype == 'float' else dtype}"
        made.append((parameters[at].name, shape, more))
    for strides in (False, True):
        code = _code(process.op, parameters, [parameters[at].name for at in tensors], made, fact.type, strides=strides)
        process.close()  # each code is registered in a process of its own
        registered = process.call("register", (), code=code)
        checked = process.call("check_fake", candidate, CHECK_SECONDS)
        process.close()
        if not (registered.error or checked.error or checked.fact):
            return code
    return ""


def _shapes(fact: Returned) -> Sequence[Shape]:
    return [shape for _, shape in fact.values if shape is not None]


def _changed(candidate: Candidate, tensors: Sequence[int]) -> Iterator[Candidate]:
    for at in tensors:  # the numbers in a tensor may decide the shape, as the largest index does
        yield (*candidate[:at], (*candidate[at][:3], "zeros"), *candidate[at + 1 :])
    places = _places(candidate)
    sizes = {place: _value(candidate, place) for place in places}
    equal = ([place for place in places if sizes[place] == size] for size in {*sizes.values()})
    for group in [*([place] for place in places), *equal]:
        changed = candidate
        for place in group:
            changed = with_size(changed, place, sizes[place] + _STEP)
        yield changed
    # One more dimension shows whether dimensions are counted from the first or the last one.
    rank = max(len(candidate[at][2]) for at in tensors)
    yield tuple(
        ("tensor", guess[1], (2, *guess[2]), guess[3]) if guess[0] == "tensor" and len(guess[2]) == rank else guess
        for guess in candidate
    )


def _places(candidate: Candidate, *, from_end: bool = False) -> Sequence[Place]:
    places: list[Place] = []
    for at, guess in enumerate(candidate):
        if guess[0] == "tensor":
            rank = len(guess[2])
            places += [(at, axis - rank if from_end else axis) for axis in range(rank)]
        elif guess[0] == "value" and type(guess[1]) is int:
            places.append((at, None))
    return places


def _value(candidate: Candidate, place: Place) -> int:
    at, axis = place
    return int(candidate[at][1] if axis is None else candidate[at][2][axis])


def _size(parameters: Sequence[Parameter], calls: Sequence[tuple[Candidate, Shape]], axis: int) -> str:
    """Return one size of a result as a Python expression that fits in every call; "" if there is none."""
    candidate, first = calls[0]
    ways = [_places(candidate, from_end=from_end) for from_end in (False, True)]
    sums = [(), *((one,) for way in ways for one in way), *(two for way in ways for two in combinations(way, 2))]
    # A size without a constant is likelier than one with it.
    for group in sorted(sums, key=lambda group: bool(group) and first[axis] != _total(candidate, group)):
        constant = first[axis] - _total(candidate, group)
        with suppress(IndexError):  # a call with another rank
            if all(shape[axis] == constant + _total(each, group) for each, shape in calls):
                names = [parameters[at].name + ("" if one is None else f".shape[{one}]") for at, one in group]
                return " + ".join([*names, *([str(constant)] if constant or not names else [])]).replace("+ -", "- ")
    return ""


def _total(candidate: Candidate, group: Sequence[Place]) -> int:
    return sum(_value(candidate, place) for place in group)


def _code(
    op: str, parameters: Sequence[Parameter], tensors: Sequence[str], made: Sequence[Made], kind: str, *, strides: bool
) -> str:
    listed: list[str] = []
    for one in parameters:
        if one.keyword and "*" not in listed:
            listed.append("*")
        listed.append(f"{one.name}={one.default!r}" if one.has_default else one.name)
    results = ", ".join(
        f"torch.empty_like({name}{more})"
        if strides and not sizes
        else f"{name}.new_empty({sizes or name + '.shape'}{more})"
        for name, sizes, more in made
    )
    first = tensors[0]
    lines = [
        f'@torch.library.register_fake("{op.removesuffix(".default")}")',
        f"def _fake_{without_overload(op).partition('::')[2]}({', '.join(listed)}):",
        *(
            f'    torch._check({first}.device == {one}.device, lambda: "{first} and {one} are on two devices")'
            for one in tensors[1:]
        ),
        f"    return {f'[{results}]' if kind == 'list' else results or 'None'}",
    ]
    return "\n".join(lines) + "\n"
