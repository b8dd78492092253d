"""Loads its library for the whole process, as packages with bundled libraries do."""

import ctypes
from pathlib import Path

LIBRARY = ctypes.CDLL(str(Path(__file__).with_name("libcodec.so")), mode=ctypes.RTLD_GLOBAL)
