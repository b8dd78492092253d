"""buildfarm: builds wheels of PyTorch CUDA extensions, and tests each wheel in every cell that it serves."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("buildfarm")
except PackageNotFoundError:  # run from a tree that was never installed
    __version__ = "0+unknown"
