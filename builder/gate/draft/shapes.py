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


@dataclass(frozen=True)
class _Size:
    """One size of a result: the sum of the values at these places, and a constant."""

    groups: Sequence[Sequence[Place]]  # the places of a group grow together, and the first one stands for all
    constant: int
    from_end: bool = False  # whether dimensions are counted from the last one

    def in_call(self, candidate: Candidate, ranks: Sequence[int]) -> int:
        """Return the size in a call; `ranks` are those of the tensors in the first call."""
        places = [self._counted(group[0], ranks) for group in self.groups]
        return self.constant + sum(_value(candidate, place) for place in places)

    def text(self, parameters: Sequence[Parameter], ranks: Sequence[int]) -> str:
        """Return the size as a Python expression."""
        places = [self._counted(group[0], ranks) for group in self.groups]
        names = [parameters[at].name + ("" if one is None else f".shape[{one}]") for at, one in places]
        return " + ".join([*names, *([str(self.constant)] if self.constant or not names else [])]).replace("+ -", "- ")

    def _counted(self, place: Place, ranks: Sequence[int]) -> Place:
        at, dimension = place
        return (at, dimension - ranks[at]) if self.from_end and dimension is not None else place


def fake_kernel(
    process: TrialProcess, op: str, parameters: Sequence[Parameter], candidate: Candidate, fact: Mapping[str, Any]
) -> str:
    """Return Python code that registers a fake kernel, or "" if the sizes of the results do not follow from the inputs.

    A size follows if it is a constant plus sizes of inputs or integers, in calls that change one of these at a time.
    The check `fake` of the gate passes with the code.
    """
    results = [_read(text) for text in fact["result"]]
    known = [one for one in results if one]
    tensors = [at for at, guess in enumerate(candidate) if guess[0] == "tensor"]
    lists = any(guess[0] == "tensors" for guess in candidate)
    if len(known) != len(results) or not tensors or lists or fact["changed"]:
        return ""
    shapes = [shape for _, shape in known]
    for at in tensors:  # the numbers in a tensor may decide the shape, as the largest index does
        zeros = _shapes(process, (*candidate[:at], (*candidate[at][:3], "zeros"), *candidate[at + 1 :]))
        if zeros not in (None, shapes):
            return ""
    grown = list(_grown(process, candidate, shapes))
    sizes = [_sizes(candidate, number, shape, grown) for number, shape in enumerate(shapes)]
    complete = [one for one in sizes if one is not None]
    if len(complete) != len(sizes):
        return ""
    ranks = [len(guess[2]) if guess[0] == "tensor" else 0 for guess in candidate]
    likes = [next((at for at in tensors if _is_like(one, at, ranks[at])), None) for one in complete]
    ranked = _in_another_rank(process, candidate, ranks, complete, likes)
    texts = [[size.text(parameters, ranks) for size in one] for one in ranked or ()]
    dtypes = _dtypes(process, candidate, [dtype for dtype, _ in known])
    for strides in (False, True) if ranked is not None else ():
        made = [_made(parameters, candidate, tensors, *one, keep_strides=strides) for one in zip(dtypes, texts, likes)]
        code = _code(op, parameters, [parameters[at].name for at in tensors], made, fact["type"])
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


def _grown(
    process: TrialProcess, candidate: Candidate, shapes: Shapes
) -> Iterator[tuple[Sequence[Place], Sequence[Shapes]]]:
    """Make each integer and each size of the inputs larger; yield the places and the shapes if the op accepts that.

    Sizes that cannot grow alone must agree with others: those of the same value then grow together.
    """
    together: dict[int, list[Place]] = {}
    for at, guess in enumerate(candidate):
        places: list[Place] = [(at, dimension) for dimension in range(len(guess[2]) if guess[0] == "tensor" else 0)]
        if guess[0] == "value" and type(guess[1]) is int:
            places = [(at, None)]
        for place in places:
            larger = _larger(process, candidate, [place], shapes)
            if larger:
                yield [place], larger
            elif place[1] is not None:
                together.setdefault(_value(candidate, place), []).append(place)
    for group in together.values():
        larger = _larger(process, candidate, group, shapes)
        if larger:
            yield group, larger


def _larger(process: TrialProcess, candidate: Candidate, places: Sequence[Place], shapes: Shapes) -> Sequence[Shapes]:
    """Return the shapes of the results after each step; none if the op does not accept one of them."""

    def changed(at: int, guess: Guess, step: int) -> Guess:
        if (at, None) in places:
            return ("value", guess[1] + step)
        if guess[0] != "tensor":
            return guess
        shape = tuple(size + step if (at, axis) in places else size for axis, size in enumerate(guess[2]))
        return ("tensor", guess[1], shape, guess[3])

    found: list[Shapes] = []
    for step in _STEPS:
        after = _shapes(process, tuple(changed(at, guess, step) for at, guess in enumerate(candidate)))
        if after is None or len(after) != len(shapes):
            return ()
        found.append(after)
    return found


def _sizes(
    candidate: Candidate, number: int, shape: tuple[int, ...], grown: Sequence[tuple[Sequence[Place], Sequence[Shapes]]]
) -> list[_Size] | None:
    """Return the sizes of a result; None if one is not a sum of what grew and a constant."""
    sizes = []
    for dimension, size in enumerate(shape):
        groups = []
        for group, steps in grown:
            if any(len(shapes[number]) != len(shape) for shapes in steps):
                return None
            more = [shapes[number][dimension] - size for shapes in steps]
            if more == list(_STEPS):
                groups.append(group)
            elif any(more):
                return None
        sizes.append(_Size(groups, size - sum(_value(candidate, group[0]) for group in groups)))
    return sizes


def _is_like(sizes: Sequence[_Size], at: int, rank: int) -> bool:
    """Whether a tensor has the shape of the result in every call."""
    single = all(len(size.groups) == 1 and not size.constant for size in sizes)
    return single and len(sizes) == rank and all((at, place) in one.groups[0] for place, one in enumerate(sizes))


def _in_another_rank(
    process: TrialProcess,
    candidate: Candidate,
    ranks: Sequence[int],
    sizes: Sequence[Sequence[_Size]],
    likes: Sequence[int | None],
) -> Sequence[Sequence[_Size]] | None:
    """Count dimensions from the first or the last one, as a call with one more shows; None if neither fits."""
    more = tuple(
        ("tensor", guess[1], (2, *guess[2]), guess[3]) if rank and rank == max(ranks) else guess
        for guess, rank in zip(candidate, ranks)
    )
    shapes = _shapes(process, more)
    if shapes is None or len(shapes) != len(sizes):
        return sizes
    found = []
    for shape, one, like in zip(shapes, sizes, likes):
        both = [one, [_Size(size.groups, size.constant, from_end=True) for size in one]]
        fitting = [way for way in both if tuple(size.in_call(more, ranks) for size in way) == shape]
        if not fitting and (like is None or more[like][2] != shape):
            return None
        found.append(fitting[0] if fitting else one)
    return found


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
    sizes: Sequence[str],
    like: int | None,
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
