"""The fake kernel of an op, from the shapes of its results in calls with other sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from builder.gate.coverage import without_overload
from builder.gate.draft.guesses import Guess
from builder.gate.draft.search import Candidate
from builder.gate.draft.signatures import Parameter
from builder.gate.draft.trial import CHECK_SECONDS, TrialProcess

#: How much a size or a number grows in the calls. Two calls show whether a size of the result grows by as much.
_STEPS = (2, 4)

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class _Varied:
    """What was made larger: an argument or one of its sizes, its first value, and the shapes of the results by step."""

    at: int
    dimension: int | None
    value: int
    shapes: Mapping[int, Shapes]
    #: The arguments and dimensions that grew together.
    places: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class _Size:
    """One size of a result: the sum of what was varied, and a constant."""

    terms: Sequence[_Varied]
    constant: int
    #: Whether the dimensions are counted from the last one.
    from_end: bool = False

    def of(self, candidate: Candidate, ranks: Sequence[int]) -> int:
        """The size in a call; `ranks` are those of the tensors in the first call."""
        found = self.constant
        for each in self.terms:
            guess = candidate[each.at]
            found += guess[1] if each.dimension is None else guess[2][self._index(each, ranks)]
        return found

    def text(self, parameters: Sequence[Parameter], ranks: Sequence[int]) -> str:
        """The size as a Python expression."""
        names = [
            parameters[each.at].name + ("" if each.dimension is None else f".shape[{self._index(each, ranks)}]")
            for each in self.terms
        ]
        constant = [str(self.constant)] if self.constant or not names else []
        return " + ".join([*names, *constant]).replace("+ -", "- ")

    def _index(self, varied: _Varied, ranks: Sequence[int]) -> int:
        return (varied.dimension or 0) - (ranks[varied.at] if self.from_end else 0)


def fake_kernel(
    process: TrialProcess, op: str, parameters: Sequence[Parameter], candidate: Candidate, fact: Mapping[str, Any]
) -> str:
    """Return Python code that registers a fake kernel, or "" if the sizes of the results do not follow from the inputs.

    A size follows if it is a constant plus sizes of inputs or integers, in calls that change one of these at a time.
    The check `fake` of the gate passes with the code.
    """
    results = [_read(text) for text in fact["result"]]
    known = [each for each in results if each]
    tensors = [at for at, guess in enumerate(candidate) if guess[0] == "tensor"]
    lists = any(guess[0] == "tensors" for guess in candidate)
    if len(known) != len(results) or not tensors or lists or fact["changed"]:
        return ""
    shapes = [shape for _, shape in known]
    if _depends_on_contents(process, candidate, shapes):
        return ""
    varied = list(_varied(process, candidate, shapes))
    sizes = [_sizes(shape, at, varied) for at, shape in enumerate(shapes)]
    whole = [_like(each or [], candidate, tensors) for each in sizes]
    ranked = _in_another_rank(process, candidate, [each or [] for each in sizes], whole)
    if None in sizes or ranked is None:
        return ""
    ranks = [len(guess[2]) if guess[0] == "tensor" else 0 for guess in candidate]
    texts = [[size.text(parameters, ranks) for size in each] for each in ranked]
    dtypes = _dtypes(process, candidate, [dtype for dtype, _ in known])
    names = [parameters[at].name for at in tensors]
    for keep_strides in (False, True):
        made = [
            _made(parameters, candidate, tensors, dtype, size, like, keep_strides=keep_strides)
            for dtype, size, like in zip(dtypes, texts, whole)
        ]
        code = _code(op, parameters, names, made, fact["type"])
        if _passes(process, op, candidate, code, contiguous_only=fact["contiguous_only"]):
            return code
    return ""


def _passes(process: TrialProcess, op: str, candidate: Candidate, code: str, *, contiguous_only: bool) -> bool:
    """Whether the check `fake` passes with this fake kernel, in a process of its own: none registers a second one."""
    process.close()
    options = {"grad": [], "empty": (), "of_empty": False, "mutates": [], "contiguous_only": contiguous_only}
    registered = process.call("register", (), code=code)
    trial = process.call("check", candidate, CHECK_SECONDS, op=op, name="fake", **options)
    process.close()
    return not (registered.error or trial.error or trial.fact)


def _like(sizes: Sequence[_Size], candidate: Candidate, tensors: Sequence[int]) -> int | None:
    """The first tensor whose shape is that of a result in every call, or None."""

    def same(at: int) -> bool:
        terms = [size.terms[0] if len(size.terms) == 1 and not size.constant else None for size in sizes]
        pairs = enumerate(terms)
        return len(sizes) == len(candidate[at][2]) and all(one and (at, place) in one.places for place, one in pairs)

    return next((at for at in tensors if same(at)), None)


def _in_another_rank(
    process: TrialProcess, candidate: Candidate, sizes: Sequence[Sequence[_Size]], whole: Sequence[int | None]
) -> list[Sequence[_Size]] | None:
    """Count dimensions from the first or the last one, as a call with one more shows; None if neither fits."""
    ranks = [len(guess[2]) if guess[0] == "tensor" else 0 for guess in candidate]
    more = tuple(
        ("tensor", guess[1], (2, *guess[2]), guess[3]) if rank and rank == max(ranks) else guess
        for guess, rank in zip(candidate, ranks)
    )
    shapes = _shapes(process, more)
    if shapes is None or len(shapes) != len(sizes):
        return list(sizes)
    found: list[Sequence[_Size]] = []
    for shape, each, like in zip(shapes, sizes, whole):
        ends = [replace(size, from_end=True) for size in each]
        fitting = [one for one in (each, ends) if tuple(size.of(more, ranks) for size in one) == shape]
        if like is not None and more[like][2] == shape:
            fitting.append(each)
        if not fitting:
            return None
        found.append(fitting[0])
    return found


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


def _varied(process: TrialProcess, candidate: Candidate, shapes: Shapes) -> Iterator[_Varied]:
    """Make each size of the inputs larger, and each integer; yield what the op accepted.

    Sizes that cannot grow alone must agree with others: those of the same value then grow together.
    """
    together: dict[int, list[tuple[int, int]]] = {}
    for at, guess in enumerate(candidate):
        if guess[0] == "value" and type(guess[1]) is int:
            larger = [(*candidate[:at], ("value", guess[1] + step), *candidate[at + 1 :]) for step in _STEPS]
            yield from _accepted(process, _Varied(at, None, guess[1], {}), larger, shapes)
        for dimension, size in enumerate(guess[2] if guess[0] == "tensor" else ()):
            alone = list(_grown(process, candidate, [(at, dimension)], shapes))
            yield from alone
            if not alone:
                together.setdefault(size, []).append((at, dimension))
    for places in together.values():
        yield from _grown(process, candidate, places, shapes)


def _grown(
    process: TrialProcess, candidate: Candidate, places: Sequence[tuple[int, int]], shapes: Shapes
) -> Iterator[_Varied]:
    """Make the sizes at these places, an argument and a dimension each, larger."""
    at, dimension = places[0]
    larger = [tuple(_resized(one, n, places, step) for n, one in enumerate(candidate)) for step in _STEPS]
    yield from _accepted(process, _Varied(at, dimension, candidate[at][2][dimension], {}, places), larger, shapes)


def _accepted(process: TrialProcess, varied: _Varied, larger: Sequence[Candidate], shapes: Shapes) -> Iterator[_Varied]:
    found = [_shapes(process, candidate) for candidate in larger]
    complete = [each for each in found if each is not None and len(each) == len(shapes)]
    if len(complete) == len(larger):
        yield replace(varied, shapes=dict(zip(_STEPS, complete)))


def _resized(guess: Guess, position: int, places: Sequence[tuple[int, int]], step: int) -> Guess:
    if guess[0] != "tensor":
        return guess
    shape = tuple(size + step if (position, at) in places else size for at, size in enumerate(guess[2]))
    return ("tensor", guess[1], shape, guess[3])


def _sizes(shape: tuple[int, ...], result: int, varied: Sequence[_Varied]) -> list[_Size] | None:
    """The sizes of a result; None if one is not a sum of what was varied and a constant."""
    sizes = []
    for dimension, size in enumerate(shape):
        terms = []
        for each in varied:
            if any(len(shapes[result]) != len(shape) for shapes in each.shapes.values()):
                return None
            grown = {step: shapes[result][dimension] - size for step, shapes in each.shapes.items()}
            if all(more == step for step, more in grown.items()):
                terms.append(each)
            elif any(grown.values()):
                return None
        sizes.append(_Size(terms, size - sum(each.value for each in terms)))
    return sizes


def _dtypes(process: TrialProcess, candidate: Candidate, dtypes: Sequence[str]) -> list[str]:
    """The dtypes of the results, with "float" for that of the inputs."""
    wide = tuple(("tensor", "float64", *one[2:]) if one[:2] == ("tensor", "float") else one for one in candidate)
    trial = process.call("plain", wide)
    others = [each[0] for each in map(_read, trial.fact["result"]) if each] if not trial.error else ["float64"] * 99
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
    """An expression that makes an empty tensor like a result."""
    same = next((at for at in tensors if candidate[at][1] == dtype), tensors[0])
    at = like if like is not None else same
    name = parameters[at].name
    more = "" if candidate[at][1] == dtype else f", dtype=torch.{'float32' if dtype == 'float' else dtype}"
    if like is not None:
        return f"torch.empty_like({name}{more})" if keep_strides else f"{name}.new_empty({name}.shape{more})"
    return f"{name}.new_empty(({', '.join(sizes)}{',' * (len(sizes) == 1)}){more})"


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
