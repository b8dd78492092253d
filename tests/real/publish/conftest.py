"""The command line, for the tests of `publish` with compiled wheels."""

from tests.unit.conftest import call

__all__ = ["call"]
