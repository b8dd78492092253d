"""Readable C++ names, from the C++ runtime of this machine."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def demangle(symbol: str) -> str:
    """The readable form of a C++ name; other names, and all names without libstdc++, unchanged."""
    if not symbol.startswith("_Z"):  # other names do not load libstdc++ into the process
        return symbol
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        demangler, free = library["__cxa_demangle"], library["free"]
    except (AttributeError, OSError):
        return symbol
    demangler.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    demangler.restype = ctypes.c_void_p  # an address, not bytes: the caller frees the buffer
    free.argtypes, free.restype = [ctypes.c_void_p], None
    buffer = demangler(symbol.encode(), None, None, None)
    if not buffer:
        return symbol
    try:
        return ctypes.string_at(buffer).decode("utf-8", "replace")
    finally:
        free(buffer)
