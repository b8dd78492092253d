"""Loads its library with RTLD_GLOBAL, as many packages do."""

from __future__ import annotations

import ctypes
from pathlib import Path

LIBRARY = ctypes.CDLL(str(Path(__file__).with_name("libcompanion.so")), mode=ctypes.RTLD_GLOBAL)
