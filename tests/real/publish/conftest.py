"""The command line, for the tests of `publish` with compiled wheels."""

from __future__ import annotations

from tests.unit.publish.index.conftest import run

__all__ = ["run"]
