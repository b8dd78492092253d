"""What the unit tests share: an index of their own, and a machine without CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.wheels.toolchain import cuda_toolkit, pythons
from tests.conftest import lacking
from tests.unit import loopback
from tests.unit.small_project import PYTHON


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uv's cache, the same for all tests of a run."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture(scope="module")
def headers() -> None:
    """Python.h of the Python these tests run under: classic extensions are compiled against it."""
    found = pythons.find_python(PYTHON)
    if found is None or not found.headers:
        lacking(f"this Python {PYTHON} has no headers (Debian: python3-dev)")


@pytest.fixture
def index(tmp_path: Path, uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[loopback.PackageIndex]:
    """An empty package index, the only one uv knows of."""
    with loopback.served(tmp_path / "index") as served:
        loopback.only(served, uv_cache, monkeypatch)
        yield served


@pytest.fixture
def fresh_eyes() -> Iterator[None]:
    """Look at the machine anew: what was found once is kept for a process's life."""
    caches = (pythons.find_python, cuda_toolkit.nvcc_version, cuda_toolkit._compiler)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()
