"""The index, the machine and the caches of the unit tests, for tests that compile small libraries."""

from tests.unit.conftest import fresh_eyes, headers, index, uv_cache

__all__ = ["fresh_eyes", "headers", "index", "uv_cache"]
