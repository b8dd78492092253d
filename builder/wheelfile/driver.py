"""Libraries of NVIDIA's driver: the machine that runs a wheel has them; no package and no build machine need them."""

from __future__ import annotations

import re

#: File names. Source: the list of installed components in the README of NVIDIA's Linux driver.
DRIVER_LIBRARIES = frozenset(
    {
        "libcuda.so.1", "libcudadebugger.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1",
        "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libnvidia-opticalflow.so.1",
        "libnvidia-ptxjitcompiler.so.1", "libnvoptix.so.1",
    }
)  # fmt: skip


def is_driver_library(name: str) -> bool:
    """Whether the driver brings a library of this file name, whatever its version."""
    return re.match(r"lib(?:cuda|cudadebugger|nvcuvid|nvidia-[\w-]+|nvoptix)\.so", name) is not None
