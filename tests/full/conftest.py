"""Environments for the gate, made once for a test session."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.fixtures.gate_env import LIBRARIES, build_wheel, make_environment
from tests.unit.conftest import call

__all__ = ["call"]  # a fixture: the command line in this process

#: torch to the Python of its environment.
TORCHES = {"2.11.0": "3.12", "2.15.0": "3.13"}


@pytest.fixture(scope="session")
def gate_python(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The interpreter of an environment with a torch and every sample extension."""
    samples = tmp_path_factory.mktemp("gate_samples")
    wheels = [build_wheel(samples, name) for name in LIBRARIES]

    @cache
    def make(torch: str) -> Path:
        folder = tmp_path_factory.mktemp("gate-environment") / f"torch-{torch}"
        return make_environment(store, folder, torch, TORCHES[torch], wheels)

    return make
