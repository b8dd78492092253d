"""Headers that CUDA sources in a wheel include and the wheel lacks: their compile at run time would fail."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.wheelfile.archive import WheelContents

_CUDA = (".cu", ".cuh")
_SOURCES = (*_CUDA, ".h", ".hpp", ".cpp", ".cc")
#: Bytes of a source that are searched, and number of sources.
_MAX_SOURCE, _MAX_SOURCES = 2**20, 2000
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
#: Headers of torch, pybind11, Python, CUDA's toolkit and C++ libraries, and HIP, which only AMD's compiler reads.
_OUTSIDE = re.compile(
    r"(?:ATen|c10|torch|caffe2|THC?|pybind11|cub|thrust|cuda|nv|cooperative_groups|hip|hipcub|rocm|rocprim)(?:/.*|\w*\.\w+)"
    r"|cu[a-zA-Z]\w*\.(?:h|hpp|cuh)|(?:Python|math_constants|mma|nccl|driver_types|vector_types|vector_functions"
    r"|device_\w+|sm_\d+_\w+|builtin_types|host_defines|surface_\w+|texture_\w+|library_types|crt/\w+|omp|fatbinary\w*)"
    r"(?:\.h|\.hpp)?"
)
#: Folders of the system's own headers.
_SYSTEM = re.compile(r"(?:sys|linux|asm|arpa|net|netinet|bits|ext|experimental|numpy)/")


def missing_headers(wheel: WheelContents) -> dict[str, tuple[str, ...]]:
    """The missing headers of each source, by the path of the source; empty for a wheel without CUDA sources.

    A quoted include is searched beside the source and below every folder of the wheel, as some `-I` may name it. So is
    an include in angle brackets that names a folder, such as `<glm/glm.hpp>`. The headers of torch, CUDA and the system
    are not. Comments are skipped, conditions of the preprocessor are not evaluated. Raises DamagedWheelError.
    """
    if not any(name.endswith(_CUDA) for name in wheel.names):
        return {}
    names = set(wheel.names)
    ends = {end for name in wheel.names for end in _ends(name)}
    found = {}
    for source in sorted(name for name in wheel.names if name.endswith(_SOURCES))[:_MAX_SOURCES]:
        with wheel.open(source) as stream:
            text = stream.read(_MAX_SOURCE).decode(errors="replace")
        lacking = [
            path
            for path in _included(text)
            if posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) not in names
            and re.sub(r"^(?:\.\./)+", "", posixpath.normpath(path)) not in ends
        ]
        if lacking:
            found[source] = tuple(dict.fromkeys(lacking))
    return found


def _included(text: str) -> Iterator[str]:
    for quoted, angled in _INCLUDE.findall(_COMMENT.sub("", text)):
        path = quoted or angled
        if not _OUTSIDE.fullmatch(path) and (quoted or ("/" in path and not _SYSTEM.match(path))):
            yield path


def _ends(name: str) -> Iterator[str]:
    """The path, and the path without its first folders: `a/b/c.h`, `b/c.h` and `c.h`."""
    while name:
        yield name
        name = name.partition("/")[2]
