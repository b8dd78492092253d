"""Searches arguments that an op accepts: calls it, reads the error, changes one argument, calls it again.

The search is best-first. A message that no call produced before means that the arguments passed one more test of the
op, so the changes of these arguments are tried first.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Collection, Iterator, Sequence

from builder.gate.draft import guesses
from builder.gate.draft.guesses import CONTENTS, SIZE, Candidate, Guess, Parameter
from builder.gate.draft.trial import Trial, TrialProcess
from builder.gate.torch_limits import NO_GPU

#: Limits of the search for one op.
SECONDS, CALLS = 20.0, 500
#: The number of calls while nothing is known about how other ops call this one.
FEW_CALLS = 60
#: Shapes that all floating-point tensors get before one tensor is changed: then those of points, corners, one picture.
_SHAPES_OF_ALL = (*((SIZE,) * rank for rank in (3, 4, 1, 5)), (4, 4, 3), (4, 4, 2), (1, 4, 4, 4), (1, 4, 4, 4, 4))
#: Costs of ranks that few ops take.
_RANKS = {0: 1.5, 5: 0.6, 6: 1.5}

_ONLY_CUDA = re.compile(
    r"from the '(CPU|Autograd\w*)' backend|must be (located |placed )?(a |on |in )?(the )?(CUDA|GPU)"
    r"|(to|must) be (a |on )?(a )?(cuda|gpu)|(CUDA|GPU)( \w+)? only\b|\bonly (\w+ ){0,2}(CUDA|GPU)\b"
    r"|(CUDA|GPU) tensors?\b.*(expected|required)|(expected|expects?|requires?)( a| all)?( \w+)? (a |on )?(CUDA|GPU)\b"
    r"|not (implement(ed)?|supported|compiled) (on|for) (the )?CPU|no CPU (implementation|kernel|support)"
    r"|CPU (version )?(is )?not (implemented|supported)|Not compiled with GPU|is_cuda|non-CUDA DeviceType|needs a GPU",
    re.IGNORECASE,
)
#: The dtypes that a draft tries, and how messages name them.
_DTYPES = {
    "float": r"\b(float|float32|half|floating)\b",
    "int64": r"\b(int64|long|kLong)\b",
    "int32": r"\b(int32|int|kInt)\b",
    "bool": r"\b(bool|boolean)\b",
    "uint8": r"\b(uint8|byte|unsigned char)\b",
    "float64": r"\b(double|float64)\b",
}
_LISTED = re.compile(r"argument #?(\d+)|arg(\d+)\b|position (\d+)", re.IGNORECASE)
#: Numbers, and names of types such as torch.LongTensor and CPUBoolType: messages of one test of an op differ in them.
_VARIABLE = re.compile(
    r"-?\d+(, *-?\d+)*,?|\b(torch\.)?(cuda\.)?(CPU)?(c10::)?"
    r"(u?int\d*|long|short|byte|char|bool|float\d*|double|half|bfloat16)(tensor|type)?\b",
    re.IGNORECASE,
)
_POINTER = re.compile(r"0x[0-9a-f]+|line \d+|\w+\.(?:cpp|cu|h|py):\d+", re.IGNORECASE)


def search(
    parameters: Sequence[Parameter], process: TrialProcess, starts: Sequence[Candidate], most: int
) -> tuple[Candidate, Trial, int]:
    """Search until a call succeeds or a limit is reached; `starts` are tried before anything else.

    Return the arguments of the last call, what it gave, and the number of calls. If none succeeded, these are the first
    guess, and the message of the last test that a call reached.
    """
    first = guesses.first_guesses(parameters)
    alike = (
        tuple(("tensor", "float", shape, one[3]) if one[:2] == ("tensor", "float") else one for one in first)
        for shape in _SHAPES_OF_ALL
    )
    known = [*starts, first, *alike]
    queue: list[tuple[float, int, Candidate]] = []
    seen, told = set(known), set[str]()
    deadline, calls = time.monotonic() + SECONDS, 0
    last, without_gpu = "every call ends the process", ""
    while (known or queue) and time.monotonic() < deadline and calls < most:
        cost, candidate = (0.0, known.pop(0)) if known else heapq.heappop(queue)[::2]
        trial = process.call("plain", candidate)
        calls += 1
        if not trial.error or _ONLY_CUDA.search(trial.error):
            return candidate, trial, calls
        if not without_gpu and NO_GPU.search(trial.error):
            without_gpu, first = trial.error, candidate  # or an argument is wrong: `tensor.to(4)` needs a GPU
        kind = _VARIABLE.sub("#", _POINTER.sub("", trial.error))[:300]
        if kind not in told and not trial.crashed:
            cost, last = cost - 2.5, trial.error
        elif trial.error in told and not trial.crashed:
            cost += 3.0
        told |= {kind, trial.error}
        # A crash says nothing about the argument that caused it.
        names, dtypes = ((), ()) if trial.crashed else read(trial.error, parameters)
        for at, parameter in enumerate(parameters):
            named = 0.0 if not names else -0.5 if parameter.name in names else 1.5
            for more, guess in _changes(parameter, candidate[at], dtypes):
                changed = (*candidate[:at], guess, *candidate[at + 1 :])
                if changed not in seen:
                    seen.add(changed)
                    heapq.heappush(queue, (cost + 1.0 + named + more, len(seen), changed))
    return first, Trial(without_gpu or last), calls


def only_cuda(message: str) -> bool:
    """Whether the message says that the op has no CPU kernel, or needs a CUDA tensor or a driver."""
    return bool(_ONLY_CUDA.search(message) or NO_GPU.search(message))


def read(message: str, parameters: Sequence[Parameter]) -> tuple[Collection[str], Collection[str]]:
    """Read which parameters and which dtypes a message names."""
    text = _POINTER.sub("", message.split("\nException raised from", maxsplit=1)[0])[:1500]
    # An op may call `input` also `input_c` or `input_tensor`.
    names = {
        one.name
        for one in parameters
        if re.search(rf"(?i)(?<![a-z0-9]){re.escape(one.name)}(_\w|_tensor)?(?!\w)", text)
    }
    for groups in _LISTED.findall(text):
        number = int(next(filter(None, groups)))
        names |= {parameters[at].name for at in (number - 1, number) if 0 <= at < len(parameters)}
    return names, [dtype for dtype, pattern in _DTYPES.items() if re.search(pattern, text, re.IGNORECASE)]


def _changes(parameter: Parameter, guess: Guess, dtypes: Collection[str]) -> Iterator[tuple[float, Guess]]:
    """Yield other values for one argument with their costs; the message makes some of them cheap."""
    for number, other in enumerate(guesses.alternatives(parameter)):
        yield 0.1 * number, other
    tensor = guess[1] if guess[0] == "tensors" else guess
    for number, (cost, other) in enumerate(_tensor_changes(tensor, dtypes) if tensor[0] == "tensor" else ()):
        cheap = cost + 0.02 * number
        if guess[0] == "tensor":
            yield cheap, other
        else:
            yield from ((cheap + 0.1 * count, ("tensors", *[other] * count)) for count in (2, 1, 3))


def _tensor_changes(guess: Guess, dtypes: Collection[str]) -> Iterator[tuple[float, Guess]]:
    """Yield tensors that differ in the rank, one size, the dtype or the content; likely ones first."""
    _, dtype, shape, content = guess
    for rank in sorted((1, 2, 3, 4, 5, 0, 6), key=lambda rank: abs(rank - len(shape))):
        if rank != len(shape):
            yield _RANKS.get(rank, 0.2), ("tensor", dtype, (*shape, *(SIZE,) * rank)[:rank], content)
    for other in _DTYPES:
        plain = "randn" if content == "range" else content
        if not other.startswith("float"):
            plain = "range" if content in ("randn", "rand") else content
        if other != dtype:
            yield (-0.8 if other in dtypes else 1.5), ("tensor", other, shape, plain)
    for size in (1, 2, 3, 5, SIZE):
        for at in reversed(range(len(shape))):
            if shape[at] != size:
                yield 0.3, ("tensor", dtype, (*shape[:at], size, *shape[at + 1 :]), content)
    for other in CONTENTS if dtype.startswith("float") else ("range", "ones", "zeros"):
        if other != content:
            yield 0.5, ("tensor", dtype, shape, other)
