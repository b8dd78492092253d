"""The fake kernel of an op, from the shapes of its results in calls with other sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.gate.coverage import without_overload
from builder.gate.draft.guesses import Guess
from builder.gate.draft.search import Candidate
from builder.gate.draft.signatures import Parameter
from builder.gate.draft.trial import TrialProcess

#: How much a size or a number grows in the calls. Two calls show whether a size of the result grows by as much.
_STEPS = (2, 4)

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class _Varied:
    """What was made larger: the name that a fake kernel has for it, its first value, and the shapes by the step."""

    name: str
    value: int
    shapes: Mapping[int, Shapes]


def fake_kernel(
    process: TrialProcess, op: str, parameters: Sequence[Parameter], candidate: Candidate, fact: Mapping[str, Any]
) -> str:
    """Return Python code that registers a fake kernel, or "" if the sizes of the results do not follow from the inputs.

    A size follows if it is a constant plus sizes of inputs or integers, in calls that change one of these at a time.
    """
    results = [_read(text) for text in fact["result"]]
    tensors = [at for at, guess in enumerate(candidate) if guess[0] == "tensor"]
    if None in results or not tensors or any(guess[0] == "tensors" for guess in candidate) or fact["changed"]:
        return ""
    known = [each for each in results if each]
    shapes = [shape for _, shape in known]
    if _depends_on_contents(process, candidate, shapes):
        return ""
    varied = list(_varied(process, parameters, candidate, shapes))
    sizes = [_sizes(shape, at, varied) for at, shape in enumerate(shapes)]
    if any(each is None for each in sizes):
        return ""
    made = [
        _made(parameters, candidate, tensors, dtype, each or [])
        for (dtype, _), each in zip(_in_float64(process, candidate, known), sizes)
    ]
    return _code(op, parameters, [parameters[at].name for at in tensors], made, fact["type"])


def _read(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Dtype and shape of `float32 (5, 3)`; None for a number."""
    dtype, _, shape = text.partition(" ")
    return (dtype, tuple(ast.literal_eval(shape))) if shape else None


def _shapes(process: TrialProcess, candidate: Candidate) -> Shapes | None:
    """The shapes of the results of a call; None if it fails."""
    trial = process.call("plain", candidate)
    return None if trial.error else [each[1] for each in map(_read, trial.fact["result"]) if each]


def _depends_on_contents(process: TrialProcess, candidate: Candidate, shapes: Shapes) -> bool:
    """Whether the numbers in a tensor decide the shape of a result, as the largest index may."""
    for at, guess in enumerate(candidate):
        if guess[0] == "tensor":
            found = _shapes(process, (*candidate[:at], (*guess[:3], "zeros"), *candidate[at + 1 :]))
            if found is not None and found != shapes:
                return True
    return False


def _varied(
    process: TrialProcess, parameters: Sequence[Parameter], candidate: Candidate, shapes: Shapes
) -> Iterator[_Varied]:
    """Make each size of the inputs larger, and each integer; yield what the op accepted.

    Sizes that cannot grow alone must agree with others: those of the same value then grow together.
    """
    together: dict[int, list[tuple[int, int]]] = {}
    for at, guess in enumerate(candidate):
        if guess[0] == "value" and type(guess[1]) is int:
            larger = [(*candidate[:at], ("value", guess[1] + step), *candidate[at + 1 :]) for step in _STEPS]
            yield from _accepted(process, parameters[at].name, guess[1], larger, shapes)
        for dimension, size in enumerate(guess[2] if guess[0] == "tensor" else ()):
            alone = list(_grown(process, parameters, candidate, [(at, dimension)], shapes))
            yield from alone
            if not alone:
                together.setdefault(size, []).append((at, dimension))
    for places in together.values():
        yield from _grown(process, parameters, candidate, places, shapes)


def _grown(
    process: TrialProcess,
    parameters: Sequence[Parameter],
    candidate: Candidate,
    places: Sequence[tuple[int, int]],
    shapes: Shapes,
) -> Iterator[_Varied]:
    """Make the sizes at these places, an argument and a dimension each, larger."""
    at, dimension = places[0]
    name = f"{parameters[at].name}.shape[{dimension}]"
    larger = [tuple(_resized(one, n, places, step) for n, one in enumerate(candidate)) for step in _STEPS]
    yield from _accepted(process, name, candidate[at][2][dimension], larger, shapes)


def _accepted(
    process: TrialProcess, name: str, value: int, larger: Sequence[Candidate], shapes: Shapes
) -> Iterator[_Varied]:
    found = [_shapes(process, candidate) for candidate in larger]
    complete = [each for each in found if each is not None and len(each) == len(shapes)]
    if len(complete) == len(larger):
        yield _Varied(name, value, dict(zip(_STEPS, complete)))


def _resized(guess: Guess, position: int, places: Sequence[tuple[int, int]], step: int) -> Guess:
    if guess[0] != "tensor":
        return guess
    shape = tuple(size + step if (position, at) in places else size for at, size in enumerate(guess[2]))
    return ("tensor", guess[1], shape, guess[3])


def _sizes(shape: tuple[int, ...], result: int, varied: Sequence[_Varied]) -> list[str] | None:
    """Each size of a result as a Python expression; None if one is not a sum of what was varied and a constant."""
    sizes = []
    for dimension, size in enumerate(shape):
        names, rest = [], size
        for each in varied:
            grown = {}
            for step, shapes in each.shapes.items():
                if len(shapes[result]) != len(shape):
                    return None
                grown[step] = shapes[result][dimension] - size
            if all(more == step for step, more in grown.items()):
                names.append(each.name)
                rest -= each.value
            elif any(grown.values()):
                return None
        constant = [str(rest)] if rest or not names else []
        sizes.append(" + ".join([*names, *constant]).replace("+ -", "- "))
    return sizes


def _in_float64(
    process: TrialProcess, candidate: Candidate, known: Sequence[tuple[str, tuple[int, ...]]]
) -> list[tuple[str, tuple[int, ...]]]:
    """The results with "float" as dtype where it is that of the inputs."""
    wide = tuple(("tensor", "float64", *one[2:]) if one[:2] == ("tensor", "float") else one for one in candidate)
    trial = process.call("plain", wide)
    others = [each[0] for each in map(_read, trial.fact["result"]) if each] if not trial.error else []
    return [
        ("float" if dtype == "float32" and (not others or others[at] == "float64") else dtype, shape)
        for at, (dtype, shape) in enumerate(known)
    ]


def _made(
    parameters: Sequence[Parameter], candidate: Candidate, tensors: Sequence[int], dtype: str, sizes: Sequence[str]
) -> str:
    """An expression that makes an empty tensor like a result."""
    like = next((at for at in tensors if candidate[at][1] == dtype), None)
    at = tensors[0] if like is None else like
    name = parameters[at].name
    whole = list(sizes) == [f"{name}.shape[{each}]" for each in range(len(candidate[at][2]))]
    shape = f"{name}.shape" if whole else f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"
    more = "" if like is not None else f", dtype=torch.{'float32' if dtype == 'float' else dtype}"
    return f"{name}.new_empty({shape}{more})"


def _code(op: str, parameters: Sequence[Parameter], tensors: Sequence[str], made: Sequence[str], kind: str) -> str:
    name = op.removesuffix(".default")
    function = without_overload(op).partition("::")[2]
    listed: list[str] = []
    for one in parameters:
        if one.keyword and "*" not in listed:
            listed.append("*")
        listed.append(f"{one.name}={one.default!r}" if one.has_default else one.name)
    lines = [f'@torch.library.register_fake("{name}")', f"def _fake_{function}({', '.join(listed)}):"]
    lines += [
        f'    torch._check({tensors[0]}.device == {one}.device, lambda: "{tensors[0]} and {one} are on two devices")'
        for one in tensors[1:]
    ]
    returned = f"[{', '.join(made)}]" if kind == "list" else ", ".join(made) or "None"
    return "\n".join([*lines, f"    return {returned}"]) + "\n"
