"""Cannot be imported: its library is called before it is ready."""

from __future__ import annotations

import ctypes

ctypes.string_at(0)
