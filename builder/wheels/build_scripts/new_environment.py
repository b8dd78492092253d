"""What both executors do in a new environment: set the times of its headers, and import what most builds import.

gcc takes two headers with `#pragma once` for one file if they have the same size, the same time (in seconds) and the
same bytes (libcpp/files.cc). Many of torch's generated headers are equal. The time of an installed file is that of its
installation, so which of them gcc leaves out would be chance, and the text of equal sources would differ between cells.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path

#: Python keeps the bytecode of what it imports. A build cannot write any, and would compile these modules again.
BUILD_MODULES = ("torch.utils.cpp_extension", "setuptools.build_meta", "setuptools.command.bdist_wheel")

#: Imports modules. With a folder as first word, the bytecode of everything imported from there gets the header of
#: PEP 552 with the hash of its source file: such bytecode is valid for every copy of the file, whatever its time is.
IMPORT = """
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import source_hash

folder, *names = sys.argv[1:]
for name in names:
    with suppress(Exception):
        import_module(name)
for module in list(sys.modules.values()) if folder else ():
    spec = getattr(module, "__spec__", None)
    source, bytecode = getattr(spec, "origin", None), getattr(spec, "cached", None)
    if not source or not bytecode or not bytecode.startswith(folder):
        continue
    with suppress(OSError):
        with open(source, "rb") as stream:
            found = source_hash(stream.read())
        with open(bytecode, "r+b") as stream:
            stream.seek(4)
            stream.write((3).to_bytes(4, "little") + found)
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # torch 2.2 under Python 3.12 waits at the exit, forever, for processes that its compiler started
"""

#: Seconds since 1970. The times lie before those of any source: make and ninja see nothing new.
_FIRST, _RANGE = 400_000_000, 1_000_000_000


def fix_header_times(site: Path) -> None:
    """Set the time of each file below a folder `include` of site-packages, by its path: equal files have two times."""
    for folder, _, names in os.walk(site):
        if "include" not in Path(folder).parts[len(site.parts) :]:
            continue
        for name in names:
            if name.endswith(".py"):  # its bytecode holds its time
                continue
            path = os.path.join(folder, name)  # noqa: PTH118 - there are tens of thousands
            moment = _FIRST + zlib.crc32(os.path.relpath(path, site).encode()) % _RANGE
            with suppress(OSError):  # a file of another user that uv linked here
                os.utime(path, (moment, moment))
