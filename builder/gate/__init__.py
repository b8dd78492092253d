"""The op gate: the program that runs every op of an extension in a cell.

It is copied into the cell, so it needs only torch and the standard library, runs on Python 3.9 and imports no other
package of `builder`. A recipe's cases.py imports `Case` and `Make` from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.gate.case import Case, Make

__all__ = ["Case", "Make"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Imported on first use: the scheduler imports this package and must not import torch.
    if name in __all__:
        from builder.gate import case  # noqa: PLC0415

        return getattr(case, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
