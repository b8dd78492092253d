"""Headers that CUDA sources in a wheel include and the wheel lacks: their compile at run time would fail."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.wheelfile.archive import WheelContents

#: Bytes of a source that are searched, and number of sources.
_MAX_SOURCE, _MAX_SOURCES = 2**20, 2000
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(include|if|ifdef|ifndef|endif|define)\b[ \t]*([^\n]*)", re.MULTILINE)
#: Headers of torch, pybind11, CUDA's toolkit and C++ libraries, and Python.
_OUTSIDE = re.compile(
    r"(?:ATen|c10|torch|caffe2|THC?|pybind11|cub|thrust|cuda|nv|cooperative_groups)(?:/.*|\w*\.\w+)"
    r"|cu[a-zA-Z]\w*\.(?:h|hpp|cuh)|(?:Python|math_constants|mma|nccl|driver_types|vector_types|vector_functions"
    r"|device_\w+|sm_\d+_\w+|builtin_types|host_defines|surface_\w+|texture_\w+|library_types|crt/\w+|omp|fatbinary\w*)"
    r"(?:\.h|\.hpp)?"
)
#: Folders of the system's own headers.
_SYSTEM = re.compile(r"(?:sys|linux|asm|arpa|net|netinet|bits|ext|experimental|numpy)/")


def missing_headers(wheel: WheelContents) -> dict[str, tuple[str, ...]]:
    """The missing headers of each .cu file and of the headers that it includes; empty for a wheel without .cu files.

    A quoted include is searched beside the source and below every folder of the wheel, as some `-I` may name it. So is
    an include in angle brackets that names a folder, such as `<glm/glm.hpp>`. The headers of torch, CUDA and the system
    are not. Comments are skipped, and so are includes below an `#if`. Raises DamagedWheelError.
    """
    todo = sorted(name for name in wheel.names if name.endswith(".cu"))
    names = {end: name for name in wheel.names for end in _ends(name)} if todo else {}
    found, seen = dict[str, tuple[str, ...]](), set(todo)
    while todo and len(seen) < _MAX_SOURCES:
        source = todo.pop(0)
        with wheel.open(source) as stream:
            text = stream.read(_MAX_SOURCE).decode(errors="replace")
        lacking = []
        for path in dict.fromkeys(_included(text)):
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
            held = names.get(beside) or names.get(re.sub(r"^(?:\.\./)+", "", posixpath.normpath(path)))
            if held is None:
                lacking.append(path)
            elif held not in seen:
                seen.add(held)
                todo.append(held)
        if lacking:
            found[source] = tuple(lacking)
    return found


def _included(text: str) -> Iterator[str]:
    """The includes that no condition skips; a guard against a second inclusion is no condition."""
    depth, guard = 0, ""
    for word, rest in _DIRECTIVE.findall(_COMMENT.sub("", text)):
        if word == "define" and guard and rest.split()[:1] == [guard]:
            depth -= 1
        guard = rest.strip() if word == "ifndef" and not depth else ""
        depth += word.startswith("if")
        depth = max(0, depth - (word == "endif"))
        path = re.match(r'"([^"]+)"|<([^>]+/[^>]+)>', rest) if word == "include" and not depth else None
        if path and not _OUTSIDE.fullmatch(path[1] or path[2]) and (path[1] or not _SYSTEM.match(path[2])):
            yield path[1] or path[2]


def _ends(name: str) -> Iterator[str]:
    """The path, and the path without its first folders: `a/b/c.h`, `b/c.h` and `c.h`."""
    while name:
        yield name
        name = name.partition("/")[2]
