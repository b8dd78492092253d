"""An extension whose import calls its library."""

import ctypes
from pathlib import Path

import torch

LIBRARY = ctypes.CDLL(str(Path(__file__).with_name("libreader.so")))
FACTOR = LIBRARY.reader_open()


@torch.library.custom_op("toy_reader::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    """Twice the argument."""
    return x * FACTOR


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
