"""Crashes at import: reads address 0."""

from __future__ import annotations

import ctypes

ctypes.string_at(0)
