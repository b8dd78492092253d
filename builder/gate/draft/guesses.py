"""Guesses: values for one parameter that a draft tries, and how cases.py makes them.

A guess is a tuple of plain data, so that it can be hashed and sent to another process:

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
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from builder.gate.case import Make
from builder.gate.draft.signatures import Parameter

Guess = tuple[Any, ...]
#: A guess for each parameter of an op.
Candidate = tuple[Guess, ...]
#: An argument and one of its dimensions; None: the argument is an integer.
Place = tuple[int, Optional[int]]  # evaluated by Python 3.9

#: Every dimension has this size at first: sizes that must agree then agree.
SIZE = 4
#: randn: normally distributed; rand: between 0 and 1; range: 0, 1, 2 ... in each row, which is a valid index, a sorted
#: index, a pointer of CSR and a box; ones, zeros: one number.
CONTENTS = ("randn", "rand", "range", "ones", "zeros")
#: A tensor with more integers than these is drawn again.
_MOST_INTEGERS = 64

_INDEX = re.compile(
    r"(^|_)(idx|inds?|indices|index|indexes|ptr|indptr|rowptr|colptr|row|col|rows|cols|labels?|targets?|assign\w*|ids?|"
    r"batch|batch_\w|perm|cluster|lengths?|seq_?lens?|order|start|seed\w*|argmax|argmin|arg_\w+|edge_index|map(ping)?)"
    r"(_\w)?$|index|indices|ptr(_|$)|offsets$"
)
_BOXES = re.compile(r"box|rois?$|dets?$|proposals?|anchors?|regions?")
_UNIT = re.compile(r"mask|valid|flags?$|prob|score|alpha|opacit|pseudo|ratio|attn|attention|conf")
#: Likely ranks of tensors by name; the others start with two dimensions.
_RANKS = (
    (re.compile(r"^bias|^scores?$|batch$|^ptr|indptr|rowptr|colptr|lengths?$|seq_?lens?|^row$|^col$|_batch"), 1),
    (re.compile(r"image|img|feature_?map|^input$|^inp$|^fmap|grid|^offset$|^mask$|volume"), 4),
)
#: Values of a kind, the most likely first.
_VALUES: dict[str, Sequence[Any]] = {
    "int": (SIZE, 1, 0, 2, 3, -1),
    "float": (0.5, 2.0, 1.0, 0.0),
    "bool": (False, True),
    "str": ("sum", "mean", "max", "none", "bilinear", "nearest", "zeros", "constant", "relu", "linear"),
}


def first_guesses(parameters: Sequence[Parameter]) -> Candidate:
    """Return the most likely value for each parameter."""
    return tuple(next(alternatives(one)) for one in parameters)


def alternatives(parameter: Parameter) -> Iterator[Guess]:
    """Yield values for a parameter, the most likely first."""
    kind, default = parameter.kind, parameter.default
    if parameter.has_default:
        plain = tuple(default) if isinstance(default, list) else default
        yield ("value", plain) if _is_plain(default) else ("omitted",)
    elif parameter.optional:
        yield ("value", None)
    if kind in ("dtype", "device"):
        yield (kind,)
    elif kind == "tensors":
        yield from (("tensors", *[_first_tensor(parameter.name)] * count) for count in (2, 1))
    elif kind == "tensor" or (kind == "other" and default is None):
        yield _first_tensor(parameter.name)
    if kind == "other" and default is None:
        kind = "int"
    values = _VALUES.get(kind) or _VALUES.get(kind[:-1], ())
    if kind in _VALUES:
        yield from (("value", one) for one in values)
    else:
        yield from (("value", (one,) * count) for one in values[:4] for count in (2, 1, 3))


def _first_tensor(parameter: str) -> Guess:
    name = parameter.lower()
    rank = next((rank for pattern, rank in _RANKS if pattern.search(name)), 2)
    if _BOXES.search(name):
        return ("tensor", "float", (SIZE, 5 if "roi" in name else 4), "range")
    if _INDEX.search(name):
        return ("tensor", "int64", (SIZE,) * (rank if rank != 4 else 2), "range")
    return ("tensor", "float", (SIZE,) * rank, "rand" if _UNIT.search(name) else "randn")


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
    sizes = [*map(str, shape)]
    wanted = ["grad=True"] if grad and dtype == "float" else []
    if content in ("randn", "rand"):
        drawn = f"make.{content}({', '.join(sizes + wanted)})"
        return drawn if dtype == "float" else f"{drawn}.to(torch.{dtype})"
    text = ", ".join(sizes) or "()"
    data: str = f"torch.{content}({text})" if content in ("ones", "zeros") else content
    if content == "range":
        row = f"torch.arange({shape[-1]})" if shape else "0"
        data = f"{row}.expand({text})" if shape[1:] else row
    if dtype == "float":
        return f"make.tensor({', '.join([data, *wanted])})"
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
    return ("value", plain) if _is_plain(value) else None


def _is_plain(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, (list, tuple)):
        return all(isinstance(one, (bool, int, float, str)) for one in value)
    return value is None or isinstance(value, (bool, int, float, str))


def tensors_of(guess: Guess) -> Sequence[Guess]:
    """Return the tensors of one argument."""
    return guess[1:] if guess[0] == "tensors" else [guess] if guess[0] == "tensor" else []


def with_size(candidate: Candidate, place: Place, size: int) -> Candidate:
    """Return the arguments with this size of a tensor, or this integer."""
    at, axis = place
    changed: Guess = ("value", size)
    if axis is not None:
        kind, dtype, shape, content = candidate[at]
        changed = (kind, dtype, (*shape[:axis], size, *shape[axis + 1 :]), content)
    return (*candidate[:at], changed, *candidate[at + 1 :])
