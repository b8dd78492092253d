"""The op gate: the part of buildfarm that travels into a cell. Needs torch and the standard library, nothing else.

Python 3.9 or newer; imports no other room of `builder`. A recipe's cases.py says `from builder.gate import Case, Make`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.gate.case import Case, Make

__all__ = ["Case", "Make"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Asked for, not at hand: the conductor imports this package and must never load torch.
    if name in __all__:
        from builder.gate import case  # noqa: PLC0415

        return getattr(case, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
