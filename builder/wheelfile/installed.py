"""The name of an installed project."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution  # takes long


def distribution_name(distribution: Distribution) -> str:
    """The name of an installed project; empty if its metadata is damaged, as an interrupted installation leaves it.

    `Distribution.name` of such a project is None, or raises KeyError in newer Pythons.
    """
    try:
        metadata = distribution.metadata
        return metadata["Name"] if "Name" in metadata else ""  # noqa: SIM401 - its type has no `get` before 3.12
    except (ImportError, OSError, TypeError, ValueError):  # no METADATA, other bytes than UTF-8
        return ""
