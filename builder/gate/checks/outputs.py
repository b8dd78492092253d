"""What one call of an op gives: its result, and what it wrote to its arguments. Also as data in a file, without pickle.

The file is a line of JSON with the structure, then the bytes of the tensors.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from builder.gate.case import Case
from builder.gate.checks.guard_pages import bits, dense, mutable
from builder.gate.context import Context, flatten, map_tensors
from builder.gate.system.files import read_regular

#: The dtypes of tensors that can be sent.
_DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", "bool"),
        *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
#: The most levels of tuples, lists and dicts.
_LEVELS = 20


@dataclass(frozen=True)
class Outputs:
    """What one call gives; in the judge, after it came as bytes, with `Unknown` for what cannot be sent."""

    #: The result. For an op that returns nothing: the arguments that it may write to, in a list, in their order.
    value: Any
    #: The arguments that it may write to, after the call, by position.
    written: Mapping[int, Any]
    #: The positions of those that are not in `value`.
    not_returned: Sequence[int]

    @property
    def beside(self) -> dict[int, Any]:
        """The arguments of `written` that are not in `value`."""
        return {position: self.written[position] for position in self.not_returned}

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of `value`, then those of `beside`."""
        return flatten([self.value, *self.beside.values()])

    def map(self, change: Callable[[Tensor], Tensor]) -> Outputs:
        """Return them with every tensor changed."""

        def one(leaf: Any) -> Any:  # noqa: ANN401
            return change(leaf) if isinstance(leaf, Tensor) else leaf

        return Outputs(tree_map(one, self.value), tree_map(one, dict(self.written)), self.not_returned)


def outputs_of(context: Context, case: Case, args: Sequence[Any]) -> Outputs:
    """Call the op with these arguments."""
    written = mutable(context, case)
    given = writable(args, written)
    return outputs(context.call(case, given), given, written)


def outputs(result: Any, args: Sequence[Any], written: Set[int]) -> Outputs:  # noqa: ANN401
    """Return what a call has given that returned `result`; `written` are positions in its arguments `args`."""
    after = {position: args[position] for position in sorted(written) if position < len(args)}
    value = result if flatten(result) else list(after.values()) or result
    returned = flatten(value)

    def in_value(arg: Any) -> bool:  # noqa: ANN401
        return all(any(_same_memory(one, other) for other in returned) for one in flatten(arg))

    return Outputs(value, after, [position for position, arg in after.items() if not in_value(arg)])


def writable(args: Sequence[Any], written: Set[int]) -> tuple[Any, ...]:
    """Return the arguments with a copy of each tensor at these positions that requires a gradient.

    Autograd refuses a write to a leaf. A gradient flows through the copy to the original.
    """
    return map_tensors(args, lambda path, one: one.clone() if path.position in written and one.requires_grad else one)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    same = (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    same = same and (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
    return same and one.data_ptr() == other.data_ptr()


class UnreadableError(Exception):
    """The file does not contain results as `write_results` writes them; the message says what is wrong."""


@dataclass(frozen=True)
class Unknown:
    """Stands for a part of a result that cannot be sent; `type` is the name of its type."""

    type: str


def write_results(path: Path, results: Mapping[str, Outputs]) -> None:
    """Write results by the name of their dtype. Raises OSError."""
    blobs: list[bytes] = []
    trees = {
        name: [_tree(one.value, blobs), _tree(dict(one.written), blobs), list(one.not_returned)]
        for name, one in results.items()
    }
    with path.open("wb") as file:
        file.write(json.dumps(trees).encode() + b"\n")
        file.writelines(blobs)


def read_results(path: Path, most: int) -> dict[str, Outputs]:
    """Read results of at most `most` bytes.

    Raises UnreadableError if there is no such file, or something other than the gate wrote it.
    """
    try:
        data = read_regular(path, most + 1)
    except OSError as error:
        raise UnreadableError("the result did not arrive at the judge") from error
    if len(data) > most:
        raise UnreadableError(f"the result is larger than {most} bytes, the memory limit of a case")
    head, _, rest = data.partition(b"\n")
    blob = io.BytesIO(rest)
    try:
        return {
            str(name): Outputs(
                _value(tree, blob),
                {int(position): arg for position, arg in _value(written, blob).items()},
                list(map(int, not_returned)),
            )
            for name, (tree, written, not_returned) in json.loads(head).items()
        }
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError, StopIteration) as error:
        raise UnreadableError("the result arrives in a form that the gate does not write") from error


def _tree(value: Any, blobs: list[bytes], level: int = 0) -> Any:  # noqa: ANN401
    if isinstance(value, Tensor):
        return _tensor(value, blobs)
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"plain": value}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if level < _LEVELS and isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {"dict": [[key, _tree(one, blobs, level + 1)] for key, one in value.items()]}
    if level < _LEVELS and isinstance(value, (tuple, list)):
        items = [_tree(one, blobs, level + 1) for one in value]
        fields = list(getattr(value, "_fields", ()))
        return {"list": items} if isinstance(value, list) else {"tuple": items, "fields": fields}
    return {"unknown": type(value).__name__}


def _tensor(tensor: Tensor, blobs: list[bytes]) -> Any:  # noqa: ANN401
    # A subclass may say anything about itself: send what its memory contains.
    plain_methods = getattr(torch._C, "DisableTorchFunctionSubclass", contextlib.nullcontext)
    with torch.no_grad(), plain_methods():
        plain = dense(tensor)
        if plain.dtype not in _NAMES:
            return {"unknown": f"tensor of {plain.dtype}"}
        blobs.append(bits(plain))
        return {"tensor": _NAMES[plain.dtype], "shape": list(plain.shape)}


def _value(tree: Mapping[str, Any], blob: io.BytesIO, level: int = 0) -> Any:  # noqa: ANN401
    """Make a value from a tree; the bytes of its tensors are in `blob`, in their order."""
    if level > _LEVELS:
        raise ValueError("too many levels")
    [kind, content], *_ = tree.items()
    if kind == "tensor":
        return _read_tensor(content, tree["shape"], blob)
    if kind == "plain":
        return _plain(content)
    if kind == "complex":
        return complex(*map(float, content))
    if kind == "unknown":
        return Unknown(str(content)[:100])
    if kind == "dict":
        return {_plain(key): _value(one, blob, level + 1) for key, one in content}
    items = [_value(one, blob, level + 1) for one in content]
    if kind == "list":
        return items
    return collections.namedtuple("Result", tree["fields"])(*items) if tree["fields"] else tuple(items)


def _read_tensor(name: str, shape: Sequence[Any], blob: io.BytesIO) -> Tensor:
    empty = torch.empty(0, dtype=_DTYPES[name])
    if not all(type(one) is int and one >= 0 for one in shape):
        raise ValueError("a size is not a natural number")
    size = math.prod(shape) * empty.element_size()
    if not size:
        return empty.reshape(shape)
    part = blob.read(size)
    if len(part) != size:
        raise ValueError("bytes of a tensor are missing")
    return torch.frombuffer(bytearray(part), dtype=empty.dtype).reshape(shape)


def _plain(value: Any) -> Any:  # noqa: ANN401
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError("not a plain value")
    return value
