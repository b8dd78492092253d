"""A project whose workflows are written."""

from __future__ import annotations

from tests.unit.publish.ci.conftest import project

__all__ = ["project"]
