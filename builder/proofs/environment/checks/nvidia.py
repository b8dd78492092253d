"""NVIDIA's packages: those of another CUDA major version than torch's, and files that they overwrote."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.proofs.environment.cures import Cures
from builder.proofs.environment.facts import Environment, Package
from builder.proofs.environment.finding import Finding, Level


def check_nvidia(cures: Cures) -> Iterator[Finding]:
    """The packages of CUDA are of torch's CUDA major version, or another package requires them."""
    environment = cures.environment
    torch = environment.torch
    if torch is None or torch.cuda is None:
        return
    own, others = _by_major(environment, torch.cuda.major)
    if not others:
        return
    listed = ", ".join(f"{package.name} {package.version}" for package in others)
    shared = {path for package in others for path in package.libraries}
    overlapping = [package for package in own if shared & set(package.libraries)]
    users = {package.name: _users(environment, package) for package in others}
    leftovers = [package for package in others if not users[package.name] - {other.name for other in others}]
    index = cures.index_of(torch)
    restore = (cures.restore(overlapping, index),) if overlapping else ()
    why = f"torch {torch.version} uses CUDA {torch.cuda.major}; "
    if leftovers:
        yield Finding(
            "two-cuda-majors",
            Level.FAULT,
            f"packages of another CUDA major version than torch's are installed: {listed}",
            why + ("both have files of the same names, and the newer installation overwrote the other"
                   if overlapping else "no package requires the others, and a program may load them by mistake"),
            (cures.remove(*(package.name for package in leftovers)), *restore),
        )  # fmt: skip
    elif damaged := [package for package in overlapping if _overwritten(package)]:
        yield Finding(
            "overwritten-cuda-files",
            Level.FAULT,
            f"files of {', '.join(package.name for package in damaged)} were overwritten by {listed}",
            why + "both have files of the same names",
            (cures.restore(damaged, index),),
            f"{_names(users)} then find the files of CUDA {torch.cuda.major}: give them an environment of their own",
        )
    else:
        what = f"packages of two CUDA major versions are installed: {_names(users)} require {listed}"
        yield Finding("two-cuda-majors", Level.NOTE, what, why + "both work side by side if no file is shared")


def cuda_major(package: Package) -> int | None:
    """The CUDA major version that a package of NVIDIA is for; None for others."""
    if not package.name.startswith("nvidia-"):
        return None
    if named := re.search(r"-cu(\d+)$", package.name):
        return int(named[1])
    # Since CUDA 13, names have no suffix, and the files are in nvidia/cu13.
    found = {int(m[1]) for path in package.libraries if (m := re.match(r"nvidia/cu(\d+)/", path))}
    return found.pop() if len(found) == 1 else None


def _by_major(environment: Environment, major: int) -> tuple[list[Package], list[Package]]:
    """NVIDIA's packages of this CUDA major version, and those of others."""
    found = [(package, cuda_major(package)) for _, package in sorted(environment.visible.items())]
    return [p for p, m in found if m == major], [p for p, m in found if m not in (None, major)]


def _users(environment: Environment, package: Package) -> set[str]:
    """The installed packages that require a package."""
    return {
        other.name
        for other in environment.visible.values()
        for one in other.requirements(environment.interpreter.markers)
        if canonicalize_name(one.name) == package.name
    }


def _names(users: dict[str, set[str]]) -> str:
    return ", ".join(sorted({name for names in users.values() for name in names})) or "no package"


def _overwritten(package: Package) -> bool:
    """Whether a library differs from the digest that RECORD has."""
    return any(
        digest.startswith("sha256=") and _digest(package.folder / path) != digest.removeprefix("sha256=")
        for path, digest in package.libraries.items()
    )


def _digest(path: Path) -> str:
    """The sha256 of a file as RECORD writes it; empty without the file."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        raw = hashlib.file_digest(stream, "sha256").digest()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
