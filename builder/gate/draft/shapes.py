"""The fake kernel of an op, from the shapes of its results in calls with other sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from builder.gate.coverage import without_overload
from builder.gate.draft.guesses import Guess
from builder.gate.draft.search import Candidate
from builder.gate.draft.signatures import Parameter
from builder.gate.draft.trial import CHECK_SECONDS, TrialProcess

#: How much a size or a number grows in the calls. Two calls show whether a size of the result grows by as much.
_STEPS = (2, 4)

#: An argument and one of its dimensions; None: the argument is an integer.
Place = tuple[int, Optional[int]]  # evaluated by Python 3.9
Shapes = Sequence[tuple[int, ...]]
#: The arguments of a call, and the shapes of its results.
Call = tuple[Candidate, Shapes]


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
    """Return the dtypes of the results, with "float" for that of the inputs."""
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
    """Return an expression that makes an empty tensor like a result."""
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
