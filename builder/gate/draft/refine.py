"""What is found out about an op after a call succeeded: sizes that differ, gradients, layouts, a fake kernel."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any, Optional

from builder.gate.check_table import CHECKS
from builder.gate.context import resolve
from builder.gate.coverage import without_overload
from builder.gate.draft.guesses import SIZE, Guess
from builder.gate.draft.result import NO_FAKE_KERNEL, TRACING_CHECKS, shortened
from builder.gate.draft.search import Candidate
from builder.gate.draft.signatures import Parameter
from builder.gate.draft.trial import CHECK_SECONDS, Trial, TrialProcess

#: Sizes of dimensions, instead of SIZE for each: a case with equal sizes does not show that two are mixed up.
_SIZES = (5, 3, 6, 2, 7, 3)

#: The smallest size that is changed: a size of 1 would mean that the dimension is repeated.
_SMALLEST = 3

#: Numbers, instead of one number for all: a case with equal numbers does not show that two are mixed up, and a case
#: that multiplies with 1 does not show that an op does nothing.
_NUMBERS = (0.5, 2.0, 0.25, 1.5, 0.75, 1.25)

#: How much a size or a number grows in the calls. Two calls show whether a size of the result grows by as much.
_STEPS = (2, 4)

#: An argument and one of its dimensions; None: the argument is an integer.
Place = tuple[int, Optional[int]]  # evaluated by Python 3.9
Shapes = Sequence[tuple[int, ...]]
#: The arguments of a call, and the shapes of its results.
Call = tuple[Candidate, Shapes]


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


def with_own_sizes(
    process: TrialProcess, candidate: Candidate, fact: dict[str, Any]
) -> tuple[Candidate, dict[str, Any]]:
    """Return the arguments with a new size where a tensor may have another size than the others have.

    The op must accept a smaller and a larger size. An op that compares no sizes accepts only one of them: with the
    other, it reads past the end of a tensor.
    """

    def with_size(at: int, axis: int, size: int) -> Candidate:
        kind, dtype, shape, content = candidate[at]
        changed = (kind, dtype, (*shape[:axis], size, *shape[axis + 1 :]), content)
        return (*candidate[:at], changed, *candidate[at + 1 :])

    for at, guess in enumerate(candidate):
        others = {size for other in candidate if other is not guess for one in _tensors(other) for size in one[2]}
        for axis, size in enumerate(guess[2] if guess[0] == "tensor" else ()):
            if size in others and size >= _SMALLEST:
                larger = with_size(at, axis, max(others | {size}) + 1)
                trial = process.call("plain", larger)
                if not trial.error and not process.call("plain", with_size(at, axis, size - 1)).error:
                    candidate, fact = larger, trial.fact
    return candidate, fact


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


@dataclass(frozen=True)
class _Size:
    """One size of a result: the sum of the values at these places, and a constant."""

    places: Sequence[Place]
    constant: int

    def in_call(self, candidate: Candidate) -> int:
        return self.constant + sum(_value(candidate, place) for place in self.places)

    def text(self, parameters: Sequence[Parameter]) -> str:
        """Return the size as a Python expression."""
        names = [parameters[at].name + ("" if one is None else f".shape[{one}]") for at, one in self.places]
        return " + ".join([*names, *([str(self.constant)] if self.constant or not names else [])]).replace("+ -", "- ")


def fake_kernel(
    process: TrialProcess, op: str, parameters: Sequence[Parameter], candidate: Candidate, fact: Mapping[str, Any]
) -> str:
    """Return Python code that registers a fake kernel, or "" if the sizes of the results do not follow from the inputs.

    A size follows if it is a constant plus sizes of inputs or integers, in calls that change one of these at a time.
    The check `fake` of the gate passes with the code.
    """
    known = [one for one in map(_read, fact["result"]) if one]
    tensors = [at for at, guess in enumerate(candidate) if guess[0] == "tensor"]
    lists = any(guess[0] == "tensors" for guess in candidate)
    if len(known) != len(fact["result"]) or not tensors or lists or fact["changed"]:
        return ""
    shapes = [shape for _, shape in known]
    for at in tensors:  # the numbers in a tensor may decide the shape, as the largest index does
        zeros = _shapes(process, (*candidate[:at], (*candidate[at][:3], "zeros"), *candidate[at + 1 :]))
        if zeros not in (None, shapes):
            return ""
    grown = list(_grown(process, candidate, shapes))
    calls = [(candidate, shapes), *(call for _, steps in grown for call in steps)]
    # One more dimension shows whether dimensions are counted from the first or the last one.
    ranks = [len(guess[2]) if guess[0] == "tensor" else 0 for guess in candidate]
    wide = tuple(
        ("tensor", guess[1], (2, *guess[2]), guess[3]) if rank and rank == max(ranks) else guess
        for guess, rank in zip(candidate, ranks)
    )
    after = _shapes(process, wide)
    calls += [(wide, after)] if after is not None and len(after) == len(shapes) else []
    results: list[tuple[str, int | None, Sequence[str]]] = []
    for number, dtype in enumerate(_dtypes(process, candidate, [dtype for dtype, _ in known])):
        like = next((at for at in tensors if all(one[at][2] == made[number] for one, made in calls)), None)
        sizes = _sizes(candidate, ranks, number, grown, calls) if like is None else []
        if sizes is None:
            return ""
        results.append((dtype, like, [size.text(parameters) for size in sizes]))
    names = [parameters[at].name for at in tensors]
    for strides in (False, True):
        made = [_made(parameters, candidate, tensors, *one, keep_strides=strides) for one in results]
        code = _code(op, parameters, names, made, fact["type"])
        if _passes(process, op, candidate, code, contiguous_only=fact["contiguous_only"]):
            return code
    return ""


def _read(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape of `float32 (5, 3)`; None for a number."""
    dtype, _, shape = text.partition(" ")
    return (dtype, tuple(ast.literal_eval(shape))) if shape else None


def _shapes(process: TrialProcess, candidate: Candidate) -> Shapes | None:
    trial = process.call("plain", candidate)
    return None if trial.error else [one[1] for one in map(_read, trial.fact["result"]) if one]


def _value(candidate: Candidate, place: Place) -> int:
    at, dimension = place
    return int(candidate[at][1] if dimension is None else candidate[at][2][dimension])


def _grown(process: TrialProcess, candidate: Candidate, shapes: Shapes) -> Iterator[tuple[Place, Sequence[Call]]]:
    """Make each integer and each size of the inputs larger; yield its place and the calls if the op accepts that.

    Sizes that cannot grow alone must agree with others: those of the same value then grow together, and the first one
    stands for all.
    """
    together: dict[int, list[Place]] = {}
    for at, guess in enumerate(candidate):
        places: list[Place] = [(at, dimension) for dimension in range(len(guess[2]) if guess[0] == "tensor" else 0)]
        if guess[0] == "value" and type(guess[1]) is int:
            places = [(at, None)]
        for place in places:
            larger = _larger(process, candidate, [place], len(shapes))
            if larger:
                yield place, larger
            elif place[1] is not None:
                together.setdefault(_value(candidate, place), []).append(place)
    for group in together.values():
        larger = _larger(process, candidate, group, len(shapes))
        if larger:
            yield group[0], larger


def _larger(process: TrialProcess, candidate: Candidate, places: Sequence[Place], results: int) -> Sequence[Call]:
    """Return the calls after each step; none if the op does not accept one of them."""

    def changed(at: int, guess: Guess, step: int) -> Guess:
        if (at, None) in places:
            return ("value", guess[1] + step)
        if guess[0] != "tensor":
            return guess
        shape = tuple(size + step if (at, axis) in places else size for axis, size in enumerate(guess[2]))
        return ("tensor", guess[1], shape, guess[3])

    found: list[Call] = []
    for step in _STEPS:
        larger = tuple(changed(at, guess, step) for at, guess in enumerate(candidate))
        after = _shapes(process, larger)
        if after is None or len(after) != results:
            return ()
        found.append((larger, after))
    return found


def _sizes(
    candidate: Candidate,
    ranks: Sequence[int],
    number: int,
    grown: Sequence[tuple[Place, Sequence[Call]]],
    calls: Sequence[Call],
) -> Sequence[_Size] | None:
    """Return the sizes of a result; None if one is not a sum of what grew and a constant in every call."""
    sizes = []
    shape = calls[0][1][number]
    for dimension, size in enumerate(shape):
        places = []
        for place, steps in grown:
            if any(len(after[number]) != len(shape) for _, after in steps):
                return None
            more = [after[number][dimension] - size for _, after in steps]
            if more == list(_STEPS):
                places.append(place)
            elif any(more):
                return None
        sizes.append(_Size(places, size - sum(_value(candidate, place) for place in places)))
    from_end = [
        _Size([(at, one if one is None else one - ranks[at]) for at, one in size.places], size.constant)
        for size in sizes
    ]
    for way in (sizes, from_end):
        if all(tuple(size.in_call(one) for size in way) == after[number] for one, after in calls):
            return way
    return None


def _dtypes(process: TrialProcess, candidate: Candidate, dtypes: Sequence[str]) -> list[str]:
    wide = tuple(("tensor", "float64", *one[2:]) if one[:2] == ("tensor", "float") else one for one in candidate)
    trial = process.call("plain", wide)
    others = ["float64"] * len(dtypes) if trial.error else [one[0] for one in map(_read, trial.fact["result"]) if one]
    return ["float" if pair == ("float32", "float64") else pair[0] for pair in zip(dtypes, others)]


def _made(
    parameters: Sequence[Parameter],
    candidate: Candidate,
    tensors: Sequence[int],
    dtype: str,
    like: int | None,
    sizes: Sequence[str],
    *,
    keep_strides: bool,
) -> str:
    same = next((at for at in tensors if candidate[at][1] == dtype), tensors[0])
    at = same if like is None else like
    name = parameters[at].name
    more = "" if candidate[at][1] == dtype else f", dtype=torch.{'float32' if dtype == 'float' else dtype}"
    if like is None:
        return f"{name}.new_empty(({', '.join(sizes)}{',' * (len(sizes) == 1)}){more})"
    return f"torch.empty_like({name}{more})" if keep_strides else f"{name}.new_empty({name}.shape{more})"


def _code(op: str, parameters: Sequence[Parameter], tensors: Sequence[str], made: Sequence[str], kind: str) -> str:
    listed: list[str] = []
    for one in parameters:
        if one.keyword and "*" not in listed:
            listed.append("*")
        listed.append(f"{one.name}={one.default!r}" if one.has_default else one.name)
    function = without_overload(op).partition("::")[2]
    returned = f"[{', '.join(made)}]" if kind == "list" else ", ".join(made) or "None"
    first = tensors[0]
    lines = [
        f'@torch.library.register_fake("{op.removesuffix(".default")}")',
        f"def _fake_{function}({', '.join(listed)}):",
        *(
            f'    torch._check({first}.device == {one}.device, lambda: "{first} and {one} are on two devices")'
            for one in tensors[1:]
        ),
        f"    return {returned}",
    ]
    return "\n".join(lines) + "\n"


def _passes(process: TrialProcess, op: str, candidate: Candidate, code: str, *, contiguous_only: bool) -> bool:
    """Whether the check `fake` passes with this fake kernel, in a process of its own: none registers a second one."""
    process.close()
    options = {"grad": [], "empty": (), "of_empty": False, "mutates": [], "contiguous_only": contiguous_only}
    registered = process.call("register", (), code=code)
    trial = process.call("check", candidate, CHECK_SECONDS, op=op, name="fake", **options)
    process.close()
    return not (registered.error or trial.error or trial.fact)
