"""The command line, the index, the machine and the caches of the unit tests, for tests that compile small libraries."""

from pathlib import Path

import pytest

from tests.fixtures.compiled import torch_libraries
from tests.unit.conftest import call, fresh_eyes, headers, index, uv_cache

__all__ = ["call", "fresh_eyes", "headers", "index", "uv_cache"]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of a stand-in of torch."""
    return torch_libraries(tmp_path_factory.mktemp("torch-lib"))
