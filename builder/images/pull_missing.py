"""The base images of builds and cells: which of them are on this machine, and pulling the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.filesize import decimal

from builder.errors import MissingToolError
from builder.gate.amounts import counted
from builder.images.engine import Engine
from builder.images.registry.client import find_size
from builder.images.registry.pull import UnreachableRegistryError
from builder.images.registry.reference import Reference
from builder.log import print_line
from builder.matrix.axes import Platform


def pull_missing(engine: Engine, bases: Iterable[str], platform: Platform) -> dict[str, MissingToolError]:
    """Pull the base images that are not on this machine; return the errors by image.

    Prints the images with their sizes before the first pull. When a registry cannot be reached, the pulls end.
    """
    missing = [base for base in dict.fromkeys(bases) if engine.local_name(base) is None]
    sizes: dict[str, int | None] = {}
    if missing and engine.may_pull:
        sizes = {base: _size(engine, base, platform) for base in missing}
        print_line(_announcement(engine, missing, sizes))
    problems: dict[str, MissingToolError] = {}
    for base in missing:
        try:
            engine.pull(base, sizes.get(base))
        except MissingToolError as error:
            problems[base] = error
            if isinstance(error, UnreachableRegistryError):
                break
    return problems


def _size(engine: Engine, base: str, platform: Platform) -> int | None:
    """The size of the compressed layers in bytes, or None if this process cannot reach the registry."""
    try:
        return find_size(engine.mirrors.locate(base), platform)
    except MissingToolError:
        return None


def _announcement(engine: Engine, bases: Sequence[str], sizes: Mapping[str, int | None]) -> str:
    """`pulling 2 base images (4.2 GB compressed): nvidia/cuda:12 (3.9 GB), … from registry.example`."""
    known = [size for size in sizes.values() if size]
    total = f" ({decimal(sum(known))} compressed)" if len(known) == len(bases) else ""
    names = ", ".join(f"{base} ({decimal(size)})" if (size := sizes[base]) else base for base in bases)
    found = [source for base in bases if (source := engine.mirrors.locate(base)) != base]
    mirrors = dict.fromkeys(Reference.parse(source).registry for source in found)
    mirror = f", from {' and '.join(mirrors)}" if mirrors else ""
    return f"pulling {counted(len(bases), 'base image')}{total}: {names}{mirror}"
