"""What a release of torch cannot do, however an extension is written: told as "not run", never as a fault of it.

Each row was seen on the releases named beside it. Standard library only: the table is plain data.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass


class BeyondTorchError(Exception):
    """Nothing was found out, as this torch cannot do what is asked; the message is the reason."""


@dataclass(frozen=True)
class Limit:
    """One row.

    Attributes:
        checks: names of the checks it can meet.
        until: the first release that is held to it, as (major, minor); what it says of earlier ones is no fault.
        pattern: what the error, with its traceback and the errors behind it, holds then.
        reason: why nothing is found out, in a sentence without the release.

    """

    checks: tuple[str, ...]
    until: tuple[int, int]
    pattern: str
    reason: str


LIMITS = (
    Limit(
        ("compile",),
        (2, 2),  # seen in 2.0; right in 2.2
        r"Cannot call sizes\(\) on tensor with symbolic sizes/strides",
        "takes no symbolic sizes through an autograd.Function or a fake written in C++",
    ),
    Limit(
        ("compile",),
        (2, 2),  # seen in 2.0; right in 2.2
        r"mutating and aliasing ops should all have codegen'd kernels",
        "traces no op of an extension that writes to its arguments",
    ),
    Limit(
        ("compile",),
        (2, 11),  # seen in 2.2 and 2.6; right in 2.11
        r"Unsupported: dynamic shape operator",
        "traces no op whose answer's size depends on numbers, "
        "unless torch._dynamo.config.capture_dynamic_output_shape_ops is set",
    ),
    Limit(
        ("compile",),
        (2, 6),  # seen in 2.2; not in 2.0, right in 2.6
        r"InternalTorchDynamoError: No module named 'numpy'",
        "compiles nothing without numpy, which is not installed here",
    ),
    Limit(
        ("fake",),
        (2, 1),  # seen in 2.0, where the gate keeps torch from calling the real kernel instead
        r"NotImplementedError: Could not run 'aten::\S+' with arguments from the 'Meta' backend",
        "has no fake for one of its own ops that the op is made of",
    ),
    Limit(
        ("fake",),
        (2, 6),  # seen in 2.2; right in 2.6
        r"torch/_refs/__init__\.py.*(NVIDIA driver|No CUDA GPUs|not compiled with CUDA)",
        "starts CUDA itself where a fake's size depends on numbers, and there is no GPU",
    ),
    Limit(
        ("devices",),
        (2, 1),  # seen in 2.0; from 2.1 on a fake need not be a Meta kernel
        r"Unhandled FakeTensor Device Propagation",
        "refuses two devices for every op of an extension, whatever its fake takes",
    ),
)


def release_of(version: str) -> tuple[int, int]:
    """(major, minor) of a version: "2.2.2+cu121" is (2, 2)."""
    major, minor, *_ = (int(part) for part in re.findall(r"\d+", version))
    return major, minor


def beyond(check: str, release: tuple[int, int], trace: str) -> str:
    """Why this torch cannot do what the check asks, or nothing if the error may be the extension's own.

    `trace` is what `traced` gives for it.
    """
    for limit in LIMITS:
        if check in limit.checks and release < limit.until and re.search(limit.pattern, trace, re.DOTALL):
            return f"torch {release[0]}.{release[1]} {limit.reason}"
    return ""


def raise_if_beyond(check: str, release: tuple[int, int], error: BaseException) -> None:
    """Raise BeyondTorchError if `beyond` knows a reason for this error."""
    reason = beyond(check, release, traced(error))
    if reason:
        raise BeyondTorchError(reason) from error


def traced(error: BaseException) -> str:
    """An exception with its traceback and those of the exceptions it comes from."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
