"""Guesses: values for one parameter that a draft tries, and how cases.py makes them.

A guess is a tuple of plain data, so that it can be hashed and sent to another process as JSON:

    ("tensor", dtype, shape, content)   dtype "float" is the dtype under test; content is one of CONTENTS or the
                                        text of the integers
    ("tensors", guess, guess, ...)      a list of tensors
    ("value", value)                    a number, bool, string or None, or a tuple that becomes a list
    ("dtype",), ("device",)             those under test
    ("omitted",)                        the argument is not given: its default is no plain value
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Make
from builder.gate.draft import signatures
from builder.gate.draft.signatures import Parameter

Guess = tuple[Any, ...]

#: Every dimension has this size at first: sizes that must agree then agree.
SIZE = 4

_DTYPES = ("float", "int64", "int32", "bool", "uint8", "float64")
#: randn: normally distributed; rand: between 0 and 1; range: 0, 1, 2 ... in each row, which is a valid index, a sorted
#: index, a pointer of CSR and a box; ones, zeros: one number.
CONTENTS = ("randn", "rand", "range", "ones", "zeros")

#: How the content of a tensor with given integers begins: it is the text of the list, or of one number.
_LITERAL = ("[", "-", *"0123456789", "True", "False")
#: A tensor with more integers than these is drawn again.
_MOST_INTEGERS = 64

_INDEX = re.compile(
    r"(^|_)(idx|inds?|indices|index|indexes|ptr|indptr|rowptr|colptr|row|col|rows|cols|labels?|targets?|assign\w*|ids?|"
    r"batch|batch_\w|perm|cluster|lengths?|seq_?lens?|order|start|seed\w*|argmax|argmin|arg_\w+|edge_index|map(ping)?)"
    r"(_\w)?$|index|indices|ptr(_|$)|offsets$"
)
_BOXES = re.compile(r"box|rois?$|dets?$|proposals?|anchors?|regions?")
_MASK = re.compile(r"mask|valid|flags?$")
_UNIT = re.compile(r"prob|score|alpha|opacit|pseudo|ratio|attn|attention|conf")

#: Likely ranks of tensors by name; the others start with two dimensions.
_RANKS = (
    (re.compile(r"^bias|^scores?$|batch$|^ptr|indptr|rowptr|colptr|lengths?$|seq_?lens?|^row$|^col$|_batch"), 1),
    (re.compile(r"image|img|feature_?map|^input$|^inp$|^fmap|grid|^offset$|^mask$|volume"), 4),
)
#: Parameters of norms, such as layer_norm(Tensor input, Tensor weight, float eps).
_EPS = re.compile(r"(^|_)eps(ilon)?$")
_NORM_WEIGHT = re.compile(r"^(weight|gamma|beta|bias)$")
#: The most likely first.
_INTEGERS = (SIZE, 1, 0, 2, 3, -1)
_STRINGS = ("sum", "mean", "max", "none", "bilinear", "nearest", "zeros", "constant", "relu", "linear")


def first_guesses(parameters: Sequence[Parameter]) -> tuple[Guess, ...]:
    """Return the most likely value for each parameter."""
    found = [next(alternatives(one)) for one in parameters]
    for at in norm_weights(parameters):
        if found[at][0] == "tensor":
            found[at] = ("tensor", "float", (SIZE,), "randn")
    return tuple(found)


def with_rank(guesses: Sequence[Guess], rank: int) -> tuple[Guess, ...]:
    """Return the guesses with this rank for each floating-point tensor."""
    return tuple(
        ("tensor", "float", (SIZE,) * rank, guess[3]) if guess[:2] == ("tensor", "float") else guess
        for guess in guesses
    )


def norm_weights(parameters: Sequence[Parameter]) -> list[int]:
    """Return the positions of the weights of a norm: it has an `eps`, and its weights have one dimension."""
    if not any(one.kind == signatures.FLOAT and _EPS.search(one.name.lower()) for one in parameters):
        return []
    tensors = [at for at, one in enumerate(parameters) if one.kind == signatures.TENSOR]
    return [at for at in tensors[1:] if _NORM_WEIGHT.search(parameters[at].name.lower())]


def alternatives(parameter: Parameter, numbers: Sequence[int] = ()) -> Iterator[Guess]:
    """Yield values for a parameter, the most likely first; `numbers` come from an error message."""
    name = parameter.name.lower()
    if parameter.has_default and _plain(parameter.default):
        value = tuple(parameter.default) if isinstance(parameter.default, list) else parameter.default
        yield ("value", value)
    elif parameter.has_default:
        yield ("omitted",)
    elif parameter.optional:
        yield ("value", None)
    kind = parameter.kind
    if kind == signatures.OTHER:
        if not parameter.has_default or parameter.default is None:
            yield _first_tensor(name)
            yield from (("value", value) for value in _values(signatures.INT, numbers))
    elif kind in (signatures.TENSOR, signatures.TENSORS):
        tensor = _first_tensor(name)
        yield from [("tensors", tensor, tensor), ("tensors", tensor)] if kind == signatures.TENSORS else [tensor]
    elif kind in (signatures.DTYPE, signatures.DEVICE):
        yield (kind,)
    else:
        yield from (("value", value) for value in _values(kind, numbers))


def _values(kind: str, numbers: Sequence[int]) -> Iterable[Any]:
    integers = list(dict.fromkeys([*numbers, *_INTEGERS]))
    if kind == signatures.INT:
        return integers
    if kind == signatures.FLOAT:
        return [0.5, 2.0, 1.0, 0.0, *map(float, numbers)]
    if kind == signatures.BOOL:
        return [False, True]
    if kind == signatures.STR:
        return _STRINGS
    if kind == signatures.INTS:
        return [(one,) * count for one in integers[:4] for count in (2, 1, 3)]
    if kind == signatures.FLOATS:
        return [(1.0,) * count for count in (2, 1, 3, 4)]
    return [(False,) * count for count in (2, 1, 3)] if kind == signatures.BOOLS else [None]


def _first_tensor(name: str) -> Guess:
    rank = next((rank for pattern, rank in _RANKS if pattern.search(name)), 2)
    if _BOXES.search(name):
        return ("tensor", "float", (SIZE, 5 if "roi" in name else 4), "range")
    if _INDEX.search(name):
        return ("tensor", "int64", (SIZE,) * (rank if rank != 4 else 2), "range")
    if _MASK.search(name):
        return ("tensor", "float", (SIZE,) * rank, "rand")
    return ("tensor", "float", (SIZE,) * rank, "rand" if _UNIT.search(name) else "randn")


def tensor_variants(guess: Guess, numbers: Sequence[int]) -> Iterator[Guess]:
    """Yield tensors that differ from this one in its rank, one size, its dtype or its content; likely ones first."""
    _, dtype, shape, content = guess
    for rank in sorted((1, 2, 3, 4, 5, 0, 6), key=lambda rank: abs(rank - len(shape))):
        if rank != len(shape):
            kept = shape[:rank] if rank < len(shape) else shape + (SIZE,) * (rank - len(shape))
            yield ("tensor", dtype, kept, content)
    for other in _DTYPES:
        if other != dtype:
            yield ("tensor", other, shape, _content(other, content))
    sizes = list(dict.fromkeys([*(number for number in numbers if 0 < number <= 512), 1, 2, 3, 5, SIZE]))
    for size in sizes:
        for at in range(len(shape) - 1, -1, -1):
            if shape[at] != size:
                yield ("tensor", dtype, (*shape[:at], size, *shape[at + 1 :]), content)
    for other in CONTENTS:
        if other != content and (dtype.startswith("float") or other in ("range", "ones", "zeros")):
            yield ("tensor", dtype, shape, other)


def _content(dtype: str, content: str) -> str:
    if dtype.startswith("float"):
        return "randn" if content == "range" else content
    return "range" if content in ("randn", "rand") else content


def make(guess: Guess, maker: Make) -> Any:  # noqa: ANN401
    """Return the value of a guess."""
    return eval(source(guess), {"make": maker, "torch": torch})  # noqa: S307 (the text that cases.py will have)


def source(guess: Guess, *, grad: bool = False) -> str:
    """Return the expression that makes the value in cases.py; `grad` is for floating-point tensors."""
    kind = guess[0]
    if kind == "value":
        value = guess[1]
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(list(value) if isinstance(value, tuple) else value)
    if kind == "tensors":
        return f"[{', '.join(source(one, grad=grad) for one in guess[1:])}]"
    if kind != "tensor":
        return "make.dtype" if kind == "dtype" else "torch.device(make.device)"
    _, dtype, shape, content = guess
    sizes = ", ".join(map(str, shape))
    wanted = ", grad=True" if grad and dtype == "float" else ""
    if content in ("randn", "rand"):
        return f"make.{content}({sizes}{wanted if sizes else wanted[2:]})" + (
            "" if dtype == "float" else f".to(torch.{dtype})"
        )
    if content.startswith(_LITERAL):
        data = content
    elif content == "range" and len(shape) == 1 and shape[0] <= 8:
        data = str(list(range(shape[0])))
    elif content == "range" and shape:
        data = f"torch.arange({shape[-1]}).expand({sizes})"
    else:
        data = f"torch.{'ones' if content == 'ones' else 'zeros'}({sizes or '()'})"
    if dtype == "float":
        return f"make.tensor({data}{wanted})"
    return f"make.integers({data}{'' if dtype == 'int64' else f', torch.{dtype}'})"


def guess_of(value: Any) -> Guess | None:  # noqa: ANN401
    """Return the guess for an argument of a recorded call; None for one that a draft cannot make.

    Floating-point numbers are drawn again. Integers are kept, because they may be indices of another argument.
    """
    if isinstance(value, Tensor):
        content: Any = "randn"
        if not value.is_floating_point():
            content = repr(value.tolist()) if 0 < value.numel() <= _MOST_INTEGERS else "range"
        elif value.numel() and float(value.min()) >= 0:
            content = "rand" if float(value.max()) <= 1 else "range"
        dtype = str(value.dtype).removeprefix("torch.")
        return ("tensor", "float" if dtype == "float32" else dtype, tuple(value.shape), content)
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, Tensor) for one in value):
        return ("tensors", *map(guess_of, value))
    if isinstance(value, torch.dtype):
        return ("dtype",)
    plain = tuple(value) if isinstance(value, list) else value
    return ("value", plain) if _plain(value) else None


def _plain(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, (list, tuple)):
        return all(isinstance(one, (bool, int, float, str)) for one in value)
    return value is None or isinstance(value, (bool, int, float, str))
