"""glibc's heap checks from inside: whether they are at work, and with what they fill fresh memory.

The functions of libc_malloc_debug carry old symbol versions, which a plain look-up by name does not find.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from typing import Any

_M_PERTURB = -6
#: First version of glibc by machine: x86_64, aarch64.
_VERSIONS = (b"GLIBC_2.2.5", b"GLIBC_2.17")
_SIZE = 4096


def fill_with(byte: int) -> bool:
    """Have malloc fill what it hands out with `byte`, 1 to 254; whether it does."""
    _mallopt()(_M_PERTURB, byte ^ 0xFF)
    allocate, free = _allocator()
    address = allocate(_SIZE)
    # Past the start: the allocator's own links lie there while memory is free.
    seen = ctypes.string_at(address + _SIZE // 2, 16)
    free(address)
    return seen == bytes([byte]) * 16


def fill_no_more() -> None:
    """Take `fill_with` back."""
    _mallopt()(_M_PERTURB, 0)


@functools.cache
def checks_work() -> bool:
    """Whether a write one byte past an allocation ends a process: tried in a copy of this one.

    The nursery asks first, so that its children, which inherit the answer, need not try again.
    """
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        allocate, free = _allocator()
        address = allocate(100)
        ctypes.c_ubyte.from_address(address + 100).value ^= 0xFF
        free(address)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT


def _mallopt() -> Any:  # noqa: ANN401
    libc = ctypes.CDLL(None)
    if hasattr(libc, "dlvsym"):
        libc.dlvsym.restype = ctypes.c_void_p
        libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
        for version in _VERSIONS:
            address = libc.dlvsym(None, b"mallopt", version)
            if address:
                return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(address)
    return libc.mallopt


def _allocator() -> tuple[Any, Any]:
    """malloc and free as the interpreter is bound to them, which is as every library is."""
    allocate, free = ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return allocate, free
