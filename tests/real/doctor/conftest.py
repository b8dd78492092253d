"""An environment for each test."""

from pathlib import Path

import pytest

from tests.real.doctor.make import Patient
from tests.unit.loopback import PackageIndex


@pytest.fixture
def patient(tmp_path: Path, index: PackageIndex) -> Patient:
    """An empty environment of its own."""
    found = Patient(tmp_path / "patient", index)
    found.create()
    return found
