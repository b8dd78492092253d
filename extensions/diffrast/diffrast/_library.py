"""Loads the compiled libraries, and says what is wrong where it cannot."""

from __future__ import annotations

import importlib
import re

import torch  # loads libtorch, which the libraries below are linked against

from . import _build


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = re.match(r"(\d+)\.(\d+)", version).groups()  # type: ignore[union-attr]
    return int(major), int(minor)


def check_torch(running: str) -> None:
    """Refuse a torch that is older than the C shims the libraries call.

    Raises:
        ImportError: torch is older than 2.10.
    """
    if _major_minor(running) < (2, 10):
        raise ImportError(f"diffrast: this build needs torch 2.10 or later, but torch {running} is installed")


def check_cuda(running: str, built: str) -> None:
    """Refuse a CUDA runtime of another major version: torch brings the one that is linked.

    Raises:
        ImportError: the major versions differ.
    """
    if running.split(".")[0] != built.split(".")[0]:
        raise ImportError(
            f"diffrast: this build is for CUDA {built.split('.')[0]}, but torch "
            f"{torch.__version__} brings CUDA {running}; install the wheel built for CUDA "
            f"{running.split('.')[0]}"
        )


def load() -> bool:
    """Load the libraries; True if the CUDA kernels are among them."""
    check_torch(torch.__version__)
    importlib.import_module("._C", __package__)
    # A torch without CUDA lacks what _C_cuda is linked against, and needs it not.
    if not _build.CUDA or torch.version.cuda is None:
        return False
    check_cuda(torch.version.cuda, _build.CUDA)
    importlib.import_module("._C_cuda", __package__)
    return True


HAS_CUDA: bool = load()
