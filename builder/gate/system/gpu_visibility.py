"""Hides the GPUs of the machine from torch, which otherwise initialises CUDA in unexpected places.

A process that has initialised CUDA cannot use it in its forks. torch initialises CUDA whenever it compiles, even for
the CPU: dynamo reads the state of CUDA's random numbers, and looks for a GPU that Triton supports. CUDA also reserves
terabytes of address space, so it does not start under a limit of memory.

`CUDA_VISIBLE_DEVICES` takes effect until the driver is initialised. A process that has entered torch's FakeTensorMode
without a visible GPU does not find one later: torch then stores that there is none.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.gate.system.nvidia import NODES

_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: No GPU. The gate's messages then say that the gate hides the GPUs; "" is the choice of a user.
_NONE = "-1"
#: Device files of a GPU: those of the usual driver, and those of Jetson.
_DEVICES = (*NODES, Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"))


def may_have_gpu() -> bool:
    """Whether this machine may have a visible NVIDIA GPU; initialises nothing, so CUDA may refuse a GPU of `True`."""
    return os.environ.get(_VARIABLE) not in ("", _NONE) and (
        any(device.exists() for device in _DEVICES) or _nvml_finds_gpu()
    )


def _nvml_finds_gpu() -> bool:
    """Whether NVIDIA's library for the management of GPUs is installed, and counts at least one."""
    count = ctypes.c_uint(0)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        return not nvml.nvmlInit_v2() and not nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) and count.value > 0
    except (OSError, AttributeError):
        return False


@contextmanager
def hidden_gpus() -> Iterator[None]:
    """Hide the GPUs inside; afterwards torch finds them again."""
    before = os.environ.get(_VARIABLE)
    hide_gpus()
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        if before is not None:
            os.environ[_VARIABLE] = before
        _forget()


def hide_gpus() -> None:
    """Hide the GPUs from this process and its children."""
    os.environ[_VARIABLE] = _NONE
    _forget()


def _forget() -> None:
    """Make torch look for GPUs again: it stores how many there are, and what can use them."""
    for module in ("torch.cuda", "torch.utils._triton", "torch._inductor.utils"):
        for function in list(vars(sys.modules[module]).values()) if module in sys.modules else []:
            if hasattr(function, "cache_clear"):
                function.cache_clear()
    for module, name, value in (
        ("torch.cuda", "_cached_device_count", None),
        ("torch._dynamo.device_interface", "_device_initialized", False),
    ):
        if name in vars(sys.modules.get(module, sys)):
            vars(sys.modules[module])[name] = value
