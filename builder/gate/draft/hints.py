"""What an error message says about the arguments: which one is wrong, and which dtype or size it needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.gate.torch_limits import NO_GPU

if TYPE_CHECKING:  # it imports torch
    from builder.gate.draft.signatures import Parameter

_ONLY_CUDA = re.compile(
    r"from the '(CPU|Autograd\w*)' backend|must be (located |placed )?(a |on |in )?(the )?(CUDA|GPU)"
    r"|(to|must) be (a |on )?(a )?(cuda|gpu)"
    r"|(CUDA|GPU) tensors?\b.*(expected|required)|(expected|expects?|requires?)( a| all)?( \w+)? (a |on )?(CUDA|GPU)\b"
    r"|not (implemented|supported|compiled) (on|for) (the )?CPU|no CPU (implementation|kernel|support)"
    r"|CPU (version )?(is )?not (implemented|supported)|Not compiled with GPU|is_cuda|non-CUDA DeviceType",
    re.IGNORECASE,
)
_DTYPES = (
    (r"\b(int64|long|kLong)\b", "int64"),
    (r"\b(int32|int|kInt)\b", "int32"),
    (r"\b(uint8|byte|unsigned char)\b", "uint8"),
    (r"\b(bool|boolean)\b", "bool"),
    (r"\b(float|float32|half|floating)\b", "float"),
    (r"\b(double|float64)\b", "float64"),
)
_LISTED = re.compile(r"argument #?(\d+)|arg(\d+)\b|position (\d+)", re.IGNORECASE)
#: Names of types, in which messages of one kind differ: torch.LongTensor, CPUBoolType, float.
_TYPE = re.compile(
    r"\b(torch\.)?(cuda\.)?(CPU)?(c10::)?"
    r"(u?int\d*|long|short|byte|char|bool|float\d*|double|half|bfloat16)(tensor|type)?\b",
    re.IGNORECASE,
)
_POINTER = re.compile(r"0x[0-9a-f]+|line \d+|\w+\.(?:cpp|cu|h|py):\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Hints:
    """What one message says."""

    names: frozenset[str] = frozenset()  # the parameters that it names; empty if it names none
    numbers: Sequence[int] = ()  # integers in the message, which may be sizes
    dtypes: Sequence[str] = ()  # dtypes that it mentions


def only_cuda(message: str) -> bool:
    """Whether the message says that the op has no CPU kernel, or needs a CUDA tensor or a driver."""
    return bool(_ONLY_CUDA.search(message) or NO_GPU.search(message))


def read(message: str, parameters: Sequence[Parameter]) -> Hints:
    """Read a message."""
    text = _POINTER.sub("", message.split("\nException raised from", maxsplit=1)[0])[:1500]
    named = {one.name for one in parameters if _names(text, one.name)}
    for groups in _LISTED.findall(text):
        number = int(next(filter(None, groups)))
        named |= {parameters[at].name for at in (number - 1, number) if 0 <= at < len(parameters)}
    numbers = [int(one) for one in re.findall(r"(?<![\w.])-?\d{1,4}(?![\w.]*\d)", text)]
    dtypes = [dtype for pattern, dtype in _DTYPES if re.search(pattern, text, re.IGNORECASE)]
    numbers = sorted(dict.fromkeys(numbers), key=lambda number: number < 0)
    return Hints(frozenset(named), numbers, dtypes)


def _names(text: str, name: str) -> bool:
    """Whether the text names a parameter; an op may call `input` also `input_c` or `input_tensor`."""
    return bool(re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(_\w|_tensor)?(?!\w)", text))


def kind_of(message: str) -> str:
    """Return the message without its numbers: two messages of one kind come from the same test in the op."""
    plain = _TYPE.sub("type", _POINTER.sub("", message))
    return re.sub(r"-?\d+(, *-?\d+)*,?", "#", plain)[:300]
