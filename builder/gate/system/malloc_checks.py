"""glibc's heap checks inside this process: tests whether they work, and sets the byte that fills fresh memory.

The functions of libc_malloc_debug have old symbol versions, which a look-up by name alone does not find.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from typing import Any

_M_PERTURB = -6
#: First glibc version of a machine: x86_64, aarch64.
_VERSIONS = (b"GLIBC_2.2.5", b"GLIBC_2.17")
_SIZE = 4096


def fill_with(byte: int) -> bool:
    """Make malloc fill fresh memory with `byte`, 1 to 254; return whether it does."""
    _mallopt()(_M_PERTURB, byte ^ 0xFF)
    allocate, free = _allocator()
    address = allocate(_SIZE)
    # The start of free memory contains the allocator's own links, so look at the middle.
    content = ctypes.string_at(address + _SIZE // 2, 16)
    free(address)
    return content == bytes([byte]) * 16


def stop_filling() -> None:
    """Undo `fill_with`."""
    _mallopt()(_M_PERTURB, 0)


@functools.cache
def heap_checks_work() -> bool:
    """Return whether a write one byte past an allocation aborts a process; tries it in a forked child.

    The fork server calls this first, so that its children inherit the cached result.
    """
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        allocate, free = _allocator()
        address = allocate(100)
        # glibc looks for the end of the allocation from behind, by lengths that it reads from the memory. Leftover
        # content can pass for such lengths and so hide the write. Zeros cannot.
        ctypes.memset(address, 0, 100)
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
    """Return malloc and free as the interpreter, and so every library, is bound to them."""
    allocate, free = ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return allocate, free
