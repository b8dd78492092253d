"""torchvision and torchaudio: the release for this torch, of the same CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.matrix.axes import Torch
from builder.proofs.environment.cures import Cures
from builder.proofs.environment.facts import Package, TorchInstall
from builder.proofs.environment.finding import Finding, Level
from builder.proofs.environment.installed import installed

#: What users see if the release is that of another torch.
_SYMPTOM = {
    "torchvision": "`import torchvision` fails with `operator torchvision::nms does not exist`, or its ops are missing",
    "torchaudio": "`import torchaudio` fails with an undefined symbol",
}


def check_companions(cures: Cures) -> Iterator[Finding]:
    """torchvision and torchaudio belong to the installed torch."""
    torch = cures.environment.torch
    if torch is None or torch.release is None:
        return
    for name in cures.compat.companions:
        if package := cures.environment.visible.get(name):
            yield from _judge(cures, package, torch, torch.release)


def _judge(cures: Cures, package: Package, torch: TorchInstall, release: Torch) -> Iterator[Finding]:
    name = package.name
    wanted = cures.compat.companions[name].get(release, "")
    requirement = package.torch_requirement(cures.environment.interpreter.markers)
    if not wanted and requirement is None:  # neither METADATA nor the table knows
        return
    fits = requirement.specifier.contains(str(release)) if requirement else package.public == wanted
    if not fits:
        belongs = (
            f"requires {requirement}" if requirement else f"belongs to {_owner(cures, package) or 'another torch'}"
        )
        yield Finding(
            "companion-of-another-torch",
            Level.FAULT,
            f"{name} {package.version} {belongs}, but torch {torch.version} is installed",
            _SYMPTOM[name],
            *_cure(cures, name, torch, release),
        )
        return
    variant = torch.cuda.variant if torch.cuda else "cpu"
    built_for = re.match(r"(cu\d+|cpu)\b", package.local)
    named = built_for[1] if built_for else "cpu" if torch.cuda and _lacks_gpu_code(package) else variant
    if named == variant:
        return
    yield Finding(
        "companion-of-another-cuda",
        Level.FAULT,
        f"{name} {package.version} is for {named}, but torch {torch.version} is for {variant}",
        f"ops of {name} fail on the GPU: `Could not run 'torchvision::nms' with arguments from the 'CUDA' backend`"
        if named == "cpu"
        else f"`import {name}` fails, because it and torch were compiled with different CUDA versions",
        *_cure(cures, name, torch, release, replaces=True),
    )


def _lacks_gpu_code(package: Package) -> bool:
    """Whether torchvision was built without CUDA: it has libraries, but no GPU code. torchaudio may have none."""
    libraries = installed(package).facts.libraries if package.name == "torchvision" else ()
    return bool(libraries) and not any(library.fatbin for library in libraries)


def _owner(cures: Cures, package: Package) -> str:
    """The newest torch that a release of a companion belongs to."""
    found = [torch for torch, version in cures.compat.companions[package.name].items() if version == package.public]
    return f"torch {max(found)}" if found else ""


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
