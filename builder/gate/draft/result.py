"""What drafting found out, as plain JSON data: `OpDraft` and `Drafts`. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CALLED, CUDA_ONLY, NOT_CALLED = "called", "cuda only", "not called"


@dataclass(frozen=True)
class Argument:
    """One argument of a drafted case: its name, the expression that makes it, and whether it is given by name."""

    name: str
    source: str
    keyword: bool = False


@dataclass(frozen=True)
class OpDraft:
    """The draft of one op.

    Attributes:
        op: `namespace::name.overload`, or the dotted path of a function.
        state: CALLED, CUDA_ONLY or NOT_CALLED.
        reason: why no call succeeded, or "".
        signature: the schema or the signature, or "".
        arguments: those of the call that succeeded; for a CUDA op the first guess.
        calls: the number of calls that were tried.
        results: dtype and shape of each tensor of the result.
        contiguous_only: whether the op raises an error for inputs that are not contiguous.
        mutates: positions of the arguments that a Python function writes to.
        untraced: why torch cannot call the op with fake tensors, or "".
        remark: what the author should know about the call, or "".
        written: names of the arguments that an op without a result writes to.
        empty: the arguments of a call with an empty tensor; for a CUDA op a guess.
        empty_error: why no such call succeeded, or "".
        required: whether the gate finds the op by itself, so that it needs a case.
        device: the device of the calls, "cpu" or "cuda".

    """

    op: str
    state: str
    reason: str = ""
    signature: str = ""
    arguments: Sequence[Argument] = ()
    calls: int = 0
    results: Sequence[str] = ()
    contiguous_only: bool = False
    mutates: Sequence[int] = ()
    untraced: str = ""
    device: str = "cpu"
    required: bool = True
    remark: str = ""
    written: Sequence[str] = ()
    empty: Sequence[Argument] = ()
    empty_error: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpDraft:
        """Read the data of `asdict`; raises KeyError or TypeError for anything else."""
        lists = {name: [Argument(**one) for one in data[name]] for name in ("arguments", "empty")}
        return cls(**{**data, **lists})


@dataclass(frozen=True)
class Drafts:
    """The drafts of an extension.

    Attributes:
        where: the versions of torch, CUDA, Python and glibc, and the machine.
        error: why there are no drafts, or "".
        covered: the ops and functions that cases.py has a case for, or lists in NOT_CLAIMED.
        public: modules of which every public function has a draft that was called.
        drafts: one for each op and function without a case.
        stale: the ops that have a CPU kernel, but whose cases say `devices=["cuda"]`.

    """

    where: Mapping[str, Any]
    error: str = ""
    covered: Sequence[str] = ()
    public: Sequence[str] = ()
    drafts: Sequence[OpDraft] = field(default_factory=list)
    stale: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Drafts:
        """Read what `to_json` wrote; raises KeyError or TypeError for anything else."""
        return cls(**{**data, "drafts": [OpDraft.from_json(one) for one in data["drafts"]]})


def shortened(text: str, most: int) -> str:
    """Return a text in one line with at most `most` characters, cut after a sentence or else after a word."""
    plain = " ".join(text.split())
    if len(plain) <= most:
        return plain
    sentences = [found.end() for found in re.finditer(r"[.;!?](?= )", plain) if found.end() <= most]
    if sentences:
        return plain[: sentences[-1]].rstrip(".;")
    return plain[:most].rpartition(" ")[0] + " …"
