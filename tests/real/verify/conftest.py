"""The made-up torch releases for the tests of `verify`."""

import shutil
from pathlib import Path

import pytest

from builder.proofs.inventory import Shelf
from tests.conftest import lacking
from tests.real.verify.corpus import fill, stub_libraries


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No symbols of a real torch are read: it has other symbols, and 900 MB."""
    monkeypatch.setenv("UV_OFFLINE", "1")


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries to link with."""
    if shutil.which("g++") is None:
        lacking("no g++ on this machine")
    return stub_libraries(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the inventories of the made-up torch releases."""
    folder = tmp_path_factory.mktemp("store")
    fill(Shelf(folder / "inventories"))
    return folder
