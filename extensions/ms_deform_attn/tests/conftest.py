"""The suite tests the installed wheel: the source tree is kept out of the way."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != SOURCE]

import pytest  # noqa: E402
import torch  # noqa: E402

import ms_deform_attn  # noqa: E402

if SOURCE in Path(ms_deform_attn.__file__).resolve().parents:
    raise pytest.UsageError("ms_deform_attn was imported from the source tree; install the wheel first")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU; skipped where there is none")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU: torch.cuda.is_available() is False"))


def pytest_report_header() -> str:
    return f"torch {torch.__version__}, ms_deform_attn from {Path(ms_deform_attn.__file__).parent}"
