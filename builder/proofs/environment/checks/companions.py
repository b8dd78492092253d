"""torchvision and torchaudio: the release for the installed torch, of the same CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from builder.matrix.axes import Torch
from builder.proofs.environment.checks.extensions import read_package
from builder.proofs.environment.cures import Cures, Finding, fault
from builder.proofs.environment.facts import InstalledPackage, TorchInstall

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
        what = f"{name} {package.version} {belongs}, but torch {torch.version} is installed"
        yield fault("companion-of-another-torch", what, _SYMPTOM[name], *_cure(cures, name, torch, release))
        return
    variant = torch.cuda.variant if torch.cuda else "cpu"
    built_for = re.match(r"(cu\d+|cpu)\b", package.local)
    named = built_for[1] if built_for else "cpu" if torch.cuda and _lacks_gpu_code(package) else variant
    if named != variant:
        why = f"`import {name}` fails, because it and torch were compiled with different CUDA versions"
        if named == "cpu":
            text = "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend"
            why = f"ops of {name} fail on the GPU: `{text}`"
        what = f"{name} {package.version} is for {named}, but torch {torch.version} is for {variant}"
        yield fault("companion-of-another-cuda", what, why, *_cure(cures, name, torch, release, replaces=True))


def _lacks_gpu_code(package: InstalledPackage) -> bool:
    """Whether torchvision was built without CUDA: it has libraries, but no GPU code. torchaudio may have none."""
    libraries = read_package(package).facts.libraries if package.name == "torchvision" else ()
    return bool(libraries) and not any(library.fatbin for library in libraries)


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
