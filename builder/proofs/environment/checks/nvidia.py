"""NVIDIA's packages: those of another CUDA major version than torch's, and files that they overwrote."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from builder.proofs.environment.cures import Cures, Finding, fault, note
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage, TorchInstall


def check_nvidia(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """The packages of CUDA are of torch's CUDA major version, or another package requires them."""
    if torch.cuda is None:
        return
    environment, index = cures.environment, cures.index_of(torch)
    majors = [(package, _cuda_major(package)) for _, package in sorted(environment.visible.items())]
    others = [package for package, major in majors if major not in (None, torch.cuda.major)]
    if not others:
        return
    listed = ", ".join(f"{package.name} {package.version}" for package in others)
    shared = {path for package in others for path in package.libraries}
    own = [package for package, major in majors if major == torch.cuda.major]
    overlapping = [package for package in own if shared & set(package.libraries)]
    users = {package.name: _users(environment, package) for package in others}
    leftovers = [package for package in others if not users[package.name] - {other.name for other in others}]
    named = ", ".join(sorted({name for names in users.values() for name in names})) or "no package"
    why = f"torch {torch.version} uses CUDA {torch.cuda.major}; "
    if leftovers:
        cause = "no package requires the others, and a program may load them by mistake"
        cure = [cures.remove(*(package.name for package in leftovers))]
        if overlapping:
            cause = "both have files of the same names, and the newer installation overwrote the other"
            cure.append(cures.restore(overlapping, index))
        what = f"packages of another CUDA major version than torch's are installed: {listed}"
        yield fault("two-cuda-majors", what, why + cause, tuple(cure))
    elif damaged := [package for package in overlapping if _overwritten(package)]:
        yield fault(
            "overwritten-cuda-files",
            f"files of {', '.join(package.name for package in damaged)} were overwritten by {listed}",
            why + "both have files of the same names",
            (cures.restore(damaged, index),),
            f"{named} then find the files of CUDA {torch.cuda.major}: give them an environment of their own",
        )
    else:
        what = f"packages of two CUDA major versions are installed: {named} require {listed}"
        yield note("two-cuda-majors", what, why + "both work side by side if no file is shared")


def _cuda_major(package: InstalledPackage) -> int | None:
    """The CUDA major version that a package of NVIDIA is for; None for others."""
    if not package.name.startswith("nvidia-"):
        return None
    if named := re.search(r"-cu(\d+)$", package.name):
        return int(named[1])
    # Since CUDA 13, names have no suffix, and the files are in nvidia/cu13.
    found = {int(m[1]) for path in package.libraries if (m := re.match(r"nvidia/cu(\d+)/", path))}
    return found.pop() if len(found) == 1 else None


def _users(environment: InstalledEnvironment, package: InstalledPackage) -> set[str]:
    """The installed packages that require a package. An extra counts: nothing says which ones were asked for."""
    found = set()
    for other in environment.visible.values():
        extras = {name for line in other.requires for name in re.findall(r"""extra\s*==\s*["']([\w.-]+)""", line)}
        required = other.requirements(environment.interpreter.markers, extras)
        if any(canonicalize_name(one.name) == package.name for one in required):
            found.add(other.name)
    return found


def _overwritten(package: InstalledPackage) -> bool:
    """Whether a library differs from the digest that RECORD has."""
    for path, written in package.libraries.items():
        file, found = package.folder / path, ""
        if file.is_file():
            with file.open("rb") as stream:
                found = base64.urlsafe_b64encode(hashlib.file_digest(stream, "sha256").digest()).decode().rstrip("=")
        if written.startswith("sha256=") and written != f"sha256={found}":
            return True
    return False
