"""Readable C++ names, from the C++ runtime of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def _demangler() -> tuple[Callable[..., int | None], Callable[..., None]] | None:
    """The C++ runtime's demangler and the function that frees its result; None without libstdc++."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        demangler, free = library["__cxa_demangle"], library["free"]
    except (AttributeError, OSError):
        return None
    demangler.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    demangler.restype = ctypes.c_void_p  # an address, not bytes: the caller frees the buffer
    free.argtypes, free.restype = [ctypes.c_void_p], None
    return demangler, free


def demangle(symbol: str) -> str:
    """The readable form of a C++ name; other names, and all names without libstdc++, unchanged."""
    # Other names do not load libstdc++ into the process.
    if not symbol.startswith("_Z") or (functions := _demangler()) is None:
        return symbol
    demangler, free = functions
    buffer = demangler(symbol.encode(), None, None, None)
    if not buffer:
        return symbol
    try:
        return ctypes.string_at(buffer).decode("utf-8", "replace")
    finally:
        free(buffer)
