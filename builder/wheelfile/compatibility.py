"""Which Pythons and machines a wheel's tags admit."""

from __future__ import annotations

import os
import re
from functools import cache

from packaging.tags import Tag, cpython_tags, platform_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.matrix.axes import Python


def is_compatible(filename: str, python: Python, *, any_glibc: bool = False) -> bool:
    """Whether a wheel of this file name installs under this Python on this machine, by its tags.

    With `any_glibc` a wheel for a newer glibc than this machine's is compatible too: a container may have that glibc.
    """
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return False
    if any_glibc:
        return any(admits(tag, python, os.uname().machine) for tag in tags)
    return not tags.isdisjoint(_tags(python))


def admits(tag: Tag, python: Python, machine: str) -> bool:
    """Whether a tag suits this Python on Linux of this machine (`x86_64`), whatever its glibc."""
    suits_python = (tag.interpreter, tag.abi) in {(ours.interpreter, ours.abi) for ours in _tags(python)}
    return suits_python and re.fullmatch(rf"any|(?:manylinux\w*|linux)_{machine}", tag.platform) is not None


@cache
def _tags(python: Python) -> frozenset[Tag]:
    """Every tag that pip accepts under this Python on this machine."""
    suffix = "t" if python.free_threaded else ""
    abi = f"cp{python.major}{python.minor}{suffix}"
    versions = (python.major, f"{python.major}{python.minor}")
    pure = [Tag(f"py{v}", "none", platform) for v in versions for platform in ("any", *platform_tags())]
    return frozenset([*cpython_tags((python.major, python.minor), abis=[abi]), *pure])
