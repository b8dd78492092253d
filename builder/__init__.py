"""buildfarm: builds wheels of PyTorch CUDA extensions and proves them in every cell they claim."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("buildfarm")
except PackageNotFoundError:  # run from a tree that was never installed
    __version__ = "0+unknown"
