"""Learns a fake kernel for an op that has none, from the shapes of several calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations

from builder.gate.coverage import without_overload
from builder.gate.draft.guesses import Candidate, Place, with_size
from builder.gate.draft.signatures import Parameter
from builder.gate.draft.trial import CHECK_SECONDS, Returned, TrialProcess

Shape = tuple[int, ...]
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
    made: list[tuple[str, str, str]] = []  # how each result is made: the tensor that it is like, its sizes, its dtype
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
    op: str,
    parameters: Sequence[Parameter],
    tensors: Sequence[str],
    made: Sequence[tuple[str, str, str]],
    kind: str,
    *,
    strides: bool,
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
