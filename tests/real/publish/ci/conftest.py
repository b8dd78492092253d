"""A project whose workflows are written."""

from tests.unit.publish.ci.conftest import project

__all__ = ["project"]
