"""The suite tests the installed wheel: the source tree is kept out of the way, but for `references`."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != SOURCE]

import pytest  # noqa: E402
import torch  # noqa: E402

import diffrast  # noqa: E402

if SOURCE in Path(diffrast.__file__).resolve().parents:
    raise pytest.UsageError("diffrast was imported from the source tree; install the wheel first")
# From here on diffrast is loaded, and the source tree can only add `references`, last of all.
sys.path.append(str(SOURCE))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU; skipped where there is none")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU: torch.cuda.is_available() is False"))


def pytest_report_header() -> str:
    return f"torch {torch.__version__}, diffrast from {Path(diffrast.__file__).parent}"
