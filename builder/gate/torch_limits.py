"""What old releases of torch cannot do for any extension. The gate reports such checks as "not run", not as failed.

Each limit was observed with the releases in its comment. Standard library only: the table is plain data.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass


class UnsupportedByTorchError(Exception):
    """This torch does not support what the check needs; the message is the reason."""


@dataclass(frozen=True)
class Limit:
    """One limit."""

    check: str
    #: The first release without the limit, as (major, minor).
    until: tuple[int, int]
    #: Regular expression for the error, its traceback and its causes.
    pattern: str
    #: What torch does not support, to follow "torch 2.0".
    reason: str


#: What torch, CUDA and `context.sentence` say if CUDA is initialised without a GPU, or in a fork after a first try;
#: then what NVML and Triton say.
NO_GPU = re.compile(
    r"CUDA is called|NVIDIA driver|CUDA driver|No CUDA GPUs|no CUDA-capable device|not compiled with CUDA|cudaGetDevice"
    r"|CUDA in forked subprocess|NVML Shared Library Not Found|Driver Not Loaded|\b0 active drivers",
    re.IGNORECASE,
)

LIMITS = (
    Limit(
        "compile",
        (2, 2),  # observed with 2.0; fixed in 2.2
        r"Cannot call sizes\(\) on tensor with symbolic sizes/strides",
        "does not support symbolic sizes in an autograd.Function or in a fake kernel written in C++",
    ),
    Limit(
        "compile",
        (2, 2),  # observed with 2.0; fixed in 2.2
        r"mutating and aliasing ops should all have codegen'd kernels",
        "cannot trace an extension's op that writes to its arguments",
    ),
    Limit(
        "compile",
        (2, 11),  # observed with 2.2 and 2.6; fixed in 2.11
        r"Unsupported: dynamic shape operator",
        "cannot trace an op whose result size depends on data, "
        "unless torch._dynamo.config.capture_dynamic_output_shape_ops is set",
    ),
    Limit(
        "compile",
        (2, 6),  # observed with 2.2; not 2.0; fixed in 2.6
        r"InternalTorchDynamoError: No module named 'numpy'",
        "cannot compile without numpy, which is not installed",
    ),
    Limit(
        "fake",
        (2, 1),  # observed with 2.0, where the gate keeps torch from calling the real kernel instead
        r"NotImplementedError: Could not run 'aten::\S+' with arguments from the 'Meta' backend",
        "has no fake kernel for an op of torch that this op calls",
    ),
    Limit(
        "fake",
        (2, 6),  # observed with 2.2; fixed in 2.6
        rf"torch/_refs/__init__\.py(?s:.*)(?i:{NO_GPU.pattern})",
        "initialises CUDA when the size of a fake tensor depends on data, which fails without a GPU",
    ),
    Limit(
        "fake",
        (2, 4),  # observed with 2.2 and 2.3; fixed in 2.4
        # The caller of _lazy_init is C++: the line above is that of torch.zeros or another factory.
        rf"\n    (?!.*(?:torch\.cuda|_lazy_init)).*\n(?: +[~^]+\n)?  File \".*torch/cuda/__init__\.py\", line \d+, "
        rf"in _lazy_init\n(?s:.*)(?i:{NO_GPU.pattern})",
        "initialises CUDA when a fake tensor is created on it, which fails without a GPU",
    ),
    Limit(
        "devices",
        (2, 1),  # observed with 2.0; since 2.1 a fake kernel need not be a Meta kernel
        r"Unhandled FakeTensor Device Propagation",
        "refuses two devices for every op of an extension, even if its fake kernel accepts them",
    ),
)


def release_of(version: str) -> tuple[int, int]:
    """Return (major, minor) of a version: (2, 2) for "2.2.2+cu121"."""
    major, minor, *_ = (int(part) for part in re.findall(r"\d+", version))
    return major, minor


def why_unsupported(check: str, release: tuple[int, int], trace: str) -> str:
    """Return why this torch does not support the check, or "" if the error may come from the extension.

    `trace` is the result of `traceback_text` for the error.
    """
    for limit in LIMITS:
        if check == limit.check and release < limit.until and re.search(limit.pattern, trace):
            return f"torch {release[0]}.{release[1]} {limit.reason}"
    return ""


def raise_if_unsupported(check: str, release: tuple[int, int], error: BaseException) -> None:
    """Raise UnsupportedByTorchError if `why_unsupported` returns a reason for this error."""
    if reason := why_unsupported(check, release, traceback_text(error)):
        raise UnsupportedByTorchError(reason) from error


def traceback_text(error: BaseException) -> str:
    """Return an exception with its traceback and those of its causes."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
