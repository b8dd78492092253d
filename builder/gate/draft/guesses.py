"""The parameters of an op, by its schema, docstring or Python signature, and the values that a draft tries for them.

A guess is a tuple of plain data, so that it can be hashed and sent to another process:

    ("tensor", dtype, shape, content)   dtype "float" is the dtype under test; content is one of CONTENTS or the
                                        text of the integers
    ("tensors", guess, guess, ...)      a list of tensors
    ("value", value)                    a number, bool, string or None, or a tuple that becomes a list
    ("dtype",), ("device",)             those under test
    ("omitted",)                        the argument is not given: its default is no plain value
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from builder.gate.case import Make
from builder.gate.context import resolve

#: The kind of a type whose text names one of these words; a list of it has the kind with an `s`.
_KINDS = (
    (r"tensor", "tensor"),
    (r"scalartype|dtype", "dtype"),
    (r"device", "device"),
    (r"bool", "bool"),
    (r"(supports)?float|double|scalar|number", "float"),
    (r"(supports|sym)?int|size", "int"),
    (r"str", "str"),
)
_LIST = re.compile(r"(list|sequence|tuple|vector|iterable)\d*\b|\[\d*\]|\bsize\b")
#: A parameter in a docstring: brackets may have commas in them.
_PART = re.compile(r"(?:[^,(\[<]|\([^)]*\)|\[[^\]]*\]|<[^>]*>)+")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an op."""

    name: str  # as the schema or the signature calls it
    kind: str  # one of _KINDS, or "other" for a type that a draft does not know
    optional: bool = False  # whether None is accepted
    default: Any = None  # its default value; `has_default` says whether there is one
    has_default: bool = False
    keyword: bool = False  # whether it must be given by name
    written: bool = False  # whether the schema says that the op writes to it


@dataclass(frozen=True)
class Signature:
    """The parameters of an op, and the text that shows them in the draft."""

    text: str
    parameters: Sequence[Parameter]

    @property
    def takes_tensor(self) -> bool:
        """Whether a parameter is a tensor or a list of tensors, or may be one because its type is not declared."""
        kinds = {one.kind for one in self.parameters if one.kind != "other" or not one.has_default}
        return bool(kinds & {"tensor", "tensors", "other"})


def signature_of(op: str) -> Signature | None:
    """Return the signature of what `resolve` finds, of a module that of `forward`; None if it is not known."""
    found = resolve(op)
    if isinstance(found, torch._ops.OpOverloadPacket):
        found = getattr(found, found.overloads()[0])
    schema = getattr(found, "_schema", None) or getattr(found, "schema", None)
    if schema is not None:
        return _of_schema(schema)
    if inspect.isbuiltin(found) or type(found).__name__ in {"builtin_function_or_method", "nb_func"}:
        return _of_docstring(found)
    return _of_python(found.forward if isinstance(found, torch.nn.Module) else found)


def _of_schema(schema: Any) -> Signature:  # noqa: ANN401
    parameters = [
        Parameter(
            one.name,
            _kind(str(one.type)),
            str(one.type).startswith("Optional[") or str(one.type).endswith("?"),
            one.default_value,
            one.has_default_value(),
            keyword=one.kwarg_only,
            written=one.alias_info is not None and one.alias_info.is_write,
        )
        for one in schema.arguments
    ]
    return Signature(str(schema), parameters)


def _of_docstring(function: Callable[..., Any]) -> Signature | None:
    """Read `name(input: torch.Tensor, dim: int = 0) -> torch.Tensor`, which pybind11 writes as the first line."""
    for line in (function.__doc__ or "").splitlines():
        found = re.match(r"\s*(?:\d+\. )?(\w+)\((.*)\)\s*(->.*)?$", line)
        if found and found[2].strip() != "*args, **kwargs":
            parts = [part.strip() for part in _PART.findall(found[2]) if part.strip() not in {"*", "/", ""}]
            return Signature(line.strip(), [_of_text(number, part) for number, part in enumerate(parts)])
    return None


def _of_text(number: int, part: str) -> Parameter:
    declared, _, default = (text.strip() for text in part.partition("="))
    name, _, kind = (text.strip() for text in declared.partition(":"))
    optional = "Optional" in kind or "| None" in kind
    try:
        value = ast.literal_eval(default)
    except (SyntaxError, ValueError):  # such as torch.float32
        value = default or None
    return Parameter(name or f"arg{number}", _kind(kind or "tensor"), optional, value, bool(default))


def _of_python(function: Callable[..., Any]) -> Signature | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = []
    for one in signature.parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        has_default = one.default is not one.empty
        text = "" if one.annotation is one.empty else str(one.annotation)
        if text and "[" not in text:
            text = str(getattr(one.annotation, "__name__", text))
        # The type of a default says the kind if there is no annotation.
        kind = _kind(text or (type(one.default).__name__ if has_default else ""))
        optional = "Optional" in text or "None" in text
        default = one.default if has_default else None
        parameters.append(Parameter(one.name, kind, optional, default, has_default, one.kind == one.KEYWORD_ONLY))
    return Signature(f"{getattr(function, '__name__', '')}{signature}", parameters)


def _kind(text: str) -> str:
    plain = text.lower()
    for pattern, kind in _KINDS:
        if re.search(rf"\b({pattern})\b", plain):
            return f"{kind}s" if _LIST.search(plain) and kind not in ("dtype", "device") else kind
    return "other"


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
    r"batch|batch_\w|perm|cluster|order|start|seed\w*|argmax|argmin|arg_\w+|edge_index|map(ping)?)"
    r"(_\w)?$|index|indices|ptr(_|$)|offsets$"
)
#: How much of each row counts: not 0, which few kernels expect, and not more than a row has.
_LENGTHS = re.compile(r"len(gth)?s?(_\w)?$")
_BOXES = re.compile(r"box|rois?$|dets?$|proposals?|anchors?|regions?")
_UNIT = re.compile(r"mask|valid|flags?$|prob|score|alpha|opacit|pseudo|ratio|attn|attention|conf")
#: Likely ranks of tensors by name; the others start with two dimensions.
_RANKS = (
    (re.compile(r"^bias|^scores?$|batch$|^ptr|indptr|rowptr|colptr|^row$|^col$|_batch"), 1),
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
    if _LENGTHS.search(name):
        return ("tensor", "int64", (SIZE,), "ones")
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
