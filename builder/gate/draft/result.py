"""What drafting found out, as plain JSON data: `OpDraft` and `Drafts`. Needs no torch."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CALLED, CUDA_ONLY, NOT_CALLED = "called", "cuda only", "not called"
#: The checks that need an op that torch can trace.
TRACING_CHECKS = ("opcheck", "fake", "devices", "export", "compile")
#: The beginning of `untraced` for an op without a fake kernel.
NO_FAKE_KERNEL = "no fake kernel"


@dataclass(frozen=True)
class OpDraft:
    """The draft of one op."""

    op: str  # `namespace::name.overload`, or the dotted path of a function
    state: str  # CALLED, CUDA_ONLY or NOT_CALLED
    reason: str = ""  # why no call succeeded, or ""
    signature: str = ""  # the schema or the signature, or ""
    #: The expressions of the arguments of the call that succeeded, for a CUDA op of a guess: by position, and by name.
    arguments: Sequence[str] = ()
    kwargs: Mapping[str, str] = field(default_factory=dict)
    results: Sequence[str] = ()  # dtype and shape of each tensor of the result; the type of a number
    mutates: Sequence[int] = ()  # positions of the arguments that a Python function writes to
    untraced: str = ""  # why torch cannot call the op with fake tensors, or ""
    device: str = "cpu"  # the device of the calls, "cpu" or "cuda"
    required: bool = True  # whether the gate finds the op by itself, so that it needs a case
    written: Sequence[str] = ()  # names of the arguments that an op without a result writes to
    fake: str = ""  # Python code that registers the missing fake kernel, or ""
    contiguous_only: bool = False  # whether it refuses tensors that are not contiguous, and says so
    dtypes: Sequence[str] = ()  # the dtypes of the calls that succeeded besides float32

    @property
    def lacks_fake_kernel(self) -> bool:
        """Whether torch finds no fake kernel for the op."""
        return self.untraced.startswith(NO_FAKE_KERNEL)


@dataclass(frozen=True)
class Drafts:
    """The drafts of an extension."""

    where: Mapping[str, Any]  # the versions of torch, CUDA, Python and glibc, and the machine
    error: str = ""  # why there are no drafts, or ""
    #: The ops and functions that cases.py has a case for, or lists in NOT_CLAIMED.
    covered: Sequence[str] = ()
    #: One for each op and function without a case.
    drafts: Sequence[OpDraft] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Drafts:
        """Read its JSON; raises KeyError or TypeError for anything else."""
        return cls(**{**data, "drafts": [OpDraft(**one) for one in data["drafts"]]})


def shortened(text: str, most: int) -> str:
    """Return a text in one line with at most `most` characters, cut after a word."""
    return textwrap.shorten(text, most, placeholder=" …")
