"""The command line, with the server."""

from __future__ import annotations

from tests.unit.publish.index.conftest import run

__all__ = ["run"]
