"""The command line, the index, the machine and the caches of the unit tests, for tests that compile small libraries."""

from tests.unit.conftest import call, fresh_eyes, headers, index, uv_cache

__all__ = ["call", "fresh_eyes", "headers", "index", "uv_cache"]
