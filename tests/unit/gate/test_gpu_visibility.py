"""GPUs are hidden from torch, which forgets what it found, and then shown again."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType

import pytest

from builder.gate.system.nvidia import hidden_gpus, hide_gpus, may_have_gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(params=[None, "1"])
def before(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The GPUs that the user has chosen."""
    value: str | None = request.param
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    return value


def test_the_choice_of_the_user_is_restored(before: str | None) -> None:
    with hidden_gpus():
        assert os.environ[VARIABLE] == "-1"
    assert os.environ.get(VARIABLE) == before


@pytest.mark.usefixtures("before")
def test_what_torch_has_stored_about_gpus_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the modules of torch: triton's `has_triton` and the old `device_count` store their results."""

    @functools.cache
    def finds_gpu() -> bool:
        return os.environ.get(VARIABLE) != "-1"

    modules = {
        name: ModuleType(name) for name in ("torch.cuda", "torch.utils._triton", "torch._dynamo.device_interface")
    }
    vars(modules["torch.cuda"])["device_count"] = finds_gpu
    vars(modules["torch._dynamo.device_interface"])["_device_initialized"] = True
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert finds_gpu()
    with hidden_gpus():
        assert not finds_gpu()
        assert vars(modules["torch._dynamo.device_interface"])["_device_initialized"] is False
    assert finds_gpu()


def test_hidden_gpus_are_no_gpus(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, before or "0")  # so that monkeypatch restores it
    hide_gpus()
    assert not may_have_gpu()
