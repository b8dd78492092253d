"""What drafting found out, as plain JSON data: `OpDraft` and `Drafts`. Needs no torch."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CALLED, CUDA_ONLY, NOT_CALLED = "called", "cuda only", "not called"
#: The checks that need an op that torch can trace.
TRACING_CHECKS = ("opcheck", "fake", "devices", "export", "compile")
#: The beginning of `untraced` for an op without a fake kernel.
NO_FAKE_KERNEL = "no fake kernel"


@dataclass(frozen=True)
class Argument:
    """One argument of a drafted case: its name, the expression that makes it, and whether it is given by name."""

    name: str
    source: str
    keyword: bool = False


@dataclass(frozen=True)
class OpDraft:
    """The draft of one op."""

    #: `namespace::name.overload`, or the dotted path of a function.
    op: str
    #: CALLED, CUDA_ONLY or NOT_CALLED.
    state: str
    #: Why no call succeeded, or "".
    reason: str = ""
    #: The schema or the signature, or "".
    signature: str = ""
    #: Those of the call that succeeded; for a CUDA op the first guess.
    arguments: Sequence[Argument] = ()
    #: The number of calls that were tried.
    calls: int = 0
    #: Dtype and shape of each tensor of the result; the type of a number.
    results: Sequence[str] = ()
    #: Whether the op raises an error for inputs that are not contiguous.
    contiguous_only: bool = False
    #: Positions of the arguments that a Python function writes to.
    mutates: Sequence[int] = ()
    #: Why torch cannot call the op with fake tensors, or "".
    untraced: str = ""
    #: The device of the calls, "cpu" or "cuda".
    device: str = "cpu"
    #: Whether the gate finds the op by itself, so that it needs a case.
    required: bool = True
    #: What the author should know about the call, or "".
    remark: str = ""
    #: Names of the arguments that an op without a result writes to.
    written: Sequence[str] = ()
    #: The arguments of a call with an empty tensor; for a CUDA op a guess.
    empty: Sequence[Argument] = ()
    #: Why no such call succeeded, or "".
    empty_error: str = ""
    #: The checks of tracing that fail for this call, each with the reason.
    unclaimed: Mapping[str, str] = field(default_factory=dict)
    #: Those that fail for the call with an empty tensor.
    empty_unclaimed: Mapping[str, str] = field(default_factory=dict)
    #: Python code that registers the missing fake kernel, or "".
    fake: str = ""
    #: The dtypes of the calls that succeeded besides float32.
    dtypes: Sequence[str] = ()
    #: The calls of other ops that the call and its gradient make; only while the drafts are made.
    inside: Sequence[Any] = ()

    @property
    def lacks_fake_kernel(self) -> bool:
        """Whether torch finds no fake kernel for the op."""
        return self.untraced.startswith(NO_FAKE_KERNEL)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpDraft:
        """Read the data of `asdict`; raises KeyError or TypeError for anything else."""
        lists = {name: [Argument(**one) for one in data[name]] for name in ("arguments", "empty")}
        return cls(**{**data, **lists})


@dataclass(frozen=True)
class Drafts:
    """The drafts of an extension."""

    #: The versions of torch, CUDA, Python and glibc, and the machine.
    where: Mapping[str, Any]
    #: Why there are no drafts, or "".
    error: str = ""
    #: The ops and functions that cases.py has a case for, or lists in NOT_CLAIMED.
    covered: Sequence[str] = ()
    #: Modules of which every public function has a draft that was called.
    public: Sequence[str] = ()
    #: One for each op and function without a case.
    drafts: Sequence[OpDraft] = field(default_factory=list)
    #: The ops that have a CPU kernel, but whose cases say `devices=["cuda"]`.
    stale: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Drafts:
        """Read what `to_json` wrote; raises KeyError or TypeError for anything else."""
        return cls(**{**data, "drafts": [OpDraft.from_json(one) for one in data["drafts"]]})


def shortened(text: str, most: int) -> str:
    """Return a text in one line with at most `most` characters, cut after a word."""
    return textwrap.shorten(text, most, placeholder=" …")
