"""The packages that belong to torch: torchvision and torchaudio of the same release and CUDA, and those of NVIDIA."""

import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.matrix.axes import Torch
from builder.proofs.environment.checks.extensions import read_package
from builder.proofs.environment.cures import Cures, Finding, fault, note
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage, TorchInstall

#: What users see if the release is that of another torch.
_SYMPTOM = {
    "torchvision": "`import torchvision` fails with `operator torchvision::nms does not exist`, or its ops are missing",
    "torchaudio": "`import torchaudio` fails with an undefined symbol",
}


def check_companions(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """torchvision and torchaudio belong to the installed torch, and are for its CUDA."""
    for name in cures.compat.companions:
        if torch.release and (package := cures.environment.visible.get(name)):
            yield from _judge(cures, package, torch, torch.release)


def _judge(cures: Cures, package: InstalledPackage, torch: TorchInstall, release: Torch) -> Iterator[Finding]:
    name, versions = package.name, cures.compat.companions[package.name]
    requirement = package.torch_requirement(cures.environment.interpreter.markers)
    if not versions.get(release) and requirement is None:  # neither METADATA nor the table knows
        return
    oldest = cures.compat.companion_floors.get(name, {}).get(package.public)
    belongs = ""
    if oldest is not None and release < oldest:
        belongs = f"needs torch {oldest}"
    elif requirement:
        belongs = "" if requirement.specifier.contains(str(release)) else f"requires {requirement}"
    # A release without a requirement serves the torches of its series.
    elif Version(package.public).release[:2] != Version(versions[release]).release[:2]:
        owners = [owner for owner, version in versions.items() if version == package.public]
        belongs = f"belongs to {f'torch {max(owners)}' if owners else 'another torch'}"
    if belongs:
        what = f"{package} {belongs}, but torch {torch.version} is installed"
        yield fault("companion-of-another-torch", what, _SYMPTOM[name], *_cure(cures, name, torch, release))
        return
    variant = torch.cuda.variant if torch.cuda else "cpu"
    built_for = re.match(r"(cu\d+|cpu)\b", package.local)
    # torchvision without CUDA has libraries, but no GPU code. torchaudio may have none.
    libraries = read_package(package)[0].libraries if torch.cuda and not built_for and name == "torchvision" else ()
    without = bool(libraries) and not any(library.fatbin for library in libraries)
    named = built_for[1] if built_for else "cpu" if without else variant
    if named != variant:
        why = f"`import {name}` fails, because it and torch were compiled with different CUDA versions"
        if named == "cpu":
            text = "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend"
            why = f"ops of {name} fail on the GPU: `{text}`"
        what = f"{package} is for {named}, but torch {torch.version} is for {variant}"
        yield fault("companion-of-another-cuda", what, why, *_cure(cures, name, torch, release, replaces=True))


def _cure(
    cures: Cures, name: str, torch: TorchInstall, release: Torch, *, replaces: bool = False
) -> tuple[tuple[str, ...], str]:
    """Install the release for this torch, and keep this torch.

    With `replaces`, the command names the CUDA variant: `torchvision==0.26.0` admits every variant of 0.26.0.
    """
    variant = torch.cuda.variant if torch.cuda else "cpu"
    index = cures.index_of(torch)
    if replaces or cures.environment.visible[name].local:
        index = cures.variant_index(variant)
    wanted = cures.companion(name, release, variant if index else "")
    if not wanted:
        return (), f"buildfarm's version table has no {name} for torch {torch.version}"
    keep = f"torch=={torch.package.version}" if torch.package else "--no-deps"
    return (cures.install(wanted, keep, index=index),), ""


def check_nvidia(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """The packages of CUDA are of torch's CUDA major version, or another package requires them."""
    if torch.cuda is None:
        return
    environment, index = cures.environment, cures.index_of(torch)
    majors = [(package, _cuda_major(package)) for _, package in sorted(environment.visible.items())]
    others = [package for package, major in majors if major not in (None, torch.cuda.major)]
    if not others:
        return
    listed = ", ".join(map(str, others))
    shared = {path for package in others for path in package.libraries}
    own = [package for package, major in majors if major == torch.cuda.major]
    overlapping = [package for package in own if shared & set(package.libraries)]
    users = {package.name: _users(environment, package) for package in others}
    leftovers = [package for package in others if not users[package.name] - {other.name for other in others}]
    named = ", ".join(sorted({name for names in users.values() for name in names})) or "no package"
    why = f"torch {torch.version} uses CUDA {torch.cuda.major}; "
    if not leftovers:
        what = f"packages of two CUDA major versions are installed: {named} require {listed}"
        yield note("two-cuda-majors", what, why + "both work side by side if no file is shared")
        return
    cause = "no package requires the others, and a program may load them by mistake"
    cure = [cures.remove(*(package.name for package in leftovers))]
    if overlapping:
        cause = "both have files of the same names, and the newer installation overwrote the other"
        cure.append(cures.restore(overlapping, index))
    what = f"packages of another CUDA major version than torch's are installed: {listed}"
    yield fault("two-cuda-majors", what, why + cause, tuple(cure))


def _cuda_major(package: InstalledPackage) -> int | None:
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
