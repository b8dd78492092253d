"""Torch: whether there is one, only one, complete, by one installer, and with a matching torchvision and torchaudio."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.gate.amounts import join_names
from builder.matrix.axes import Torch
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage, TorchInstall
from builder.proofs.environment.fit import fitting_torch, installed

# torchvision and torchaudio: the release for this torch, of the same CUDA.

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


def _judge(cures: Cures, package: InstalledPackage, torch: TorchInstall, release: Torch) -> Iterator[Finding]:
    name = package.name
    wanted = cures.compat.companions[name].get(release, "")
    requirement = package.torch_requirement(cures.environment.interpreter.markers)
    if not wanted and requirement is None:  # neither METADATA nor the table knows
        return
    oldest = cures.compat.companion_floors.get(name, {}).get(package.public)
    early = oldest is not None and release < oldest
    fits = requirement.specifier.contains(str(release)) if requirement else _of_series(package.public, wanted)
    if early or not fits:
        belongs = (
            f"needs torch {oldest}"
            if early
            else f"requires {requirement}"
            if requirement
            else f"belongs to {_owner(cures, package) or 'another torch'}"
        )
        yield Finding(
            "companion-of-another-torch",
            Severity.FAULT,
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
        Severity.FAULT,
        f"{name} {package.version} is for {named}, but torch {torch.version} is for {variant}",
        f"ops of {name} fail on the GPU: `Could not run 'torchvision::nms' with arguments from the 'CUDA' backend`"
        if named == "cpu"
        else f"`import {name}` fails, because it and torch were compiled with different CUDA versions",
        *_cure(cures, name, torch, release, replaces=True),
    )


def _of_series(version: str, wanted: str) -> bool:
    """Whether both versions are of one series: a release without a requirement serves the torches of its series."""
    return Version(version).release[:2] == Version(wanted).release[:2]


def _lacks_gpu_code(package: InstalledPackage) -> bool:
    """Whether torchvision was built without CUDA: it has libraries, but no GPU code. torchaudio may have none."""
    libraries = installed(package).facts.libraries if package.name == "torchvision" else ()
    return bool(libraries) and not any(library.fatbin for library in libraries)


def _owner(cures: Cures, package: InstalledPackage) -> str:
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


def check_torch(cures: Cures) -> Iterator[Finding]:
    """There is a torch, and Python imports the only one."""
    environment = cures.environment
    if environment.torch is None:
        fit = fitting_torch(environment, cures.compat)
        yield Finding(
            "no-torch",
            Severity.FAULT,
            f"no folder of sys.path has torch ({environment.interpreter.executable})",
            "`import torch` fails with ModuleNotFoundError",
            (cures.change_torch(*fit),) if fit else (),
            "" if fit else "no torch release in buildfarm's version table fits this Python, driver and GPU",
        )
        return
    yield from _several(cures, environment.torch)
    yield from _two_records(cures)
    yield from _conda_and_pip(cures)
    yield from _requirements(cures)
    yield from _files(cures)
    yield from _backends(cures)
    yield from _leftovers(cures)
    yield from _backend_of_uv(cures)


def _several(cures: Cures, first: TorchInstall) -> Iterator[Finding]:
    """Two folders of sys.path with torch: the first hides the others."""
    interpreter = cures.environment.interpreter
    others = [one for one in cures.environment.torches[1:] if one.folder != first.folder]
    if not others:
        return
    listed = "; ".join(f"{one.version} in {one.folder}" for one in (first, *others))
    why = "Python imports the first; packages in the other folders were installed for another torch"
    if first.folder in interpreter.own:
        yield Finding("hidden-torch", Severity.NOTE, f"sys.path has {1 + len(others)} torches: {listed}", why)
        return
    what = f"the torch of the environment is hidden by another one on sys.path: {listed}"
    yield Finding("two-torches", Severity.FAULT, what, why, *_unhide(cures, first))


def _unhide(cures: Cures, first: TorchInstall) -> tuple[tuple[str, ...], str]:
    """How to take the hiding folder off sys.path: the commands, and what a person must do besides."""
    environment = cures.environment
    if first.folder == environment.interpreter.user_site:
        return ("export PYTHONNOUSERSITE=1",), "put the line into the file that starts your shell or service"
    entries = environment.variables.get("PYTHONPATH", "").split(":")
    if str(first.folder) in [entry.rstrip("/") for entry in entries]:
        rest = ":".join(entry for entry in entries if entry and entry.rstrip("/") != str(first.folder))
        line = f"export PYTHONPATH={rest}" if rest else "unset PYTHONPATH"
        return (line,), "remove the folder from the file that sets PYTHONPATH"
    return (), f"remove {first.folder} from sys.path: a .pth file in {environment.interpreter.own[0]} may name it"


def _two_records(cures: Cures) -> Iterator[Finding]:
    """One folder with two dist-info folders of torch: an interrupted update left one."""
    torch = cures.environment.torch
    found = [p for p in cures.environment.packages if p.name == "torch" and torch and p.folder == torch.folder]
    if len(found) < 2 or torch is None:
        return
    versions = ", ".join(sorted((package.version for package in found), key=Version))
    requirement = f"torch=={torch.package.version}" if torch.package else "torch"
    yield Finding(
        "two-records-of-torch",
        Severity.FAULT,
        f"{torch.folder} has metadata of torch {versions}, but only the files of {torch.version}",
        "an installation was interrupted; installers read the wrong version and do not replace the files",
        (cures.remove("torch"), cures.remove("torch"), cures.install(requirement, index=cures.index_of(torch))),
    )


def _conda_and_pip(cures: Cures) -> Iterator[Finding]:
    """A torch of conda and a torch of pip in one environment overwrite each other's files."""
    torch, conda = cures.environment.torch, cures.environment.conda
    names = [name for name in ("pytorch", "libtorch") if name in conda]
    if not names or torch is None or torch.package is None or torch.package.installer == "conda":
        return
    installer = torch.package.installer or "pip"
    yield Finding(
        "torch-of-conda-and-pip",
        Severity.FAULT,
        f"conda installed {names[0]} {conda[names[0]]}, and {installer} installed torch {torch.package.version}",
        "both have files of the same names, and the linker may load those of the other torch",
        (
            f"conda remove --yes --force --prefix {cures.environment.interpreter.prefix} {' '.join(names)}",
            cures.restore([torch.package], cures.index_of(torch)),
        ),
        "or remove the torch of pip, and install PyTorch by conda only",
    )


def _requirements(cures: Cures) -> Iterator[Finding]:
    """Every package of CUDA that torch requires is installed."""
    environment = cures.environment
    torch = environment.torch
    if torch is None or torch.package is None:
        return
    visible = environment.visible
    wanted = [*_cuda_packages(environment, torch.package)]
    index = cures.index_of(torch)
    if missing := [one for one in wanted if canonicalize_name(one.name) not in visible]:
        names = ", ".join(one.name for one in missing)
        yield Finding(
            "missing-requirement-of-torch",
            Severity.FAULT,
            f"torch {torch.version} requires {names}, which the environment does not have",
            "`import torch` fails with `cannot open shared object file`",
            (cures.install(*(_text(one) for one in missing), index=index),),
        )
    differing = [
        (one, visible[name].version)
        for one in wanted
        if (name := canonicalize_name(one.name)) in visible
        and not one.specifier.contains(visible[name].version, prereleases=True)
    ]
    if differing:
        listed = ", ".join(f"{one.name}{one.specifier} (installed: {version})" for one, version in differing)
        yield Finding(
            "other-requirement-of-torch",
            Severity.NOTE,
            f"torch {torch.version} was tested with {listed}",
            "another version may lack a function, or be slower",
            (cures.install(*(_text(one) for one, _ in differing), index=index),),
        )


def _cuda_packages(
    environment: InstalledEnvironment, package: InstalledPackage, extras: Iterable[str] = ()
) -> Iterator[Requirement]:
    """The packages of CUDA that a package requires; those of `cuda-toolkit[cublas]` are requirements of its extras."""
    for one in package.requirements(environment.interpreter.markers, extras):
        name = canonicalize_name(one.name)
        if name.startswith(("nvidia-", "cuda-", "triton")):
            yield one
            if one.extras and (found := environment.visible.get(name)):
                yield from _cuda_packages(environment, found, one.extras)


def _files(cures: Cures) -> Iterator[Finding]:
    """Torch, and the packages of CUDA that it requires, have the libraries that their RECORD lists."""
    environment = cures.environment
    torch = environment.torch
    if torch is None or torch.package is None:
        return
    names = dict.fromkeys(canonicalize_name(one.name) for one in _cuda_packages(environment, torch.package))
    packages = [torch.package, *(environment.visible[name] for name in names if name in environment.visible)]
    damaged = [package for package in packages if package.lost_libraries]
    if not damaged:
        return
    files = [path.rpartition("/")[2] for package in damaged for path in package.lost_libraries]
    shown = join_names(files)
    yield Finding(
        "missing-libraries",
        Severity.FAULT,
        f"libraries of {', '.join(f'{one.name} {one.version}' for one in damaged)} were deleted: {shown}",
        "`import torch`, or an op that needs them, fails; an installer deletes them together with another package that"
        " has files of the same names",
        (cures.restore(damaged, cures.index_of(torch)),),
    )


def _backends(cures: Cures) -> Iterator[Finding]:
    """The functions that `import torch` calls exist. torch calls the entry points of `torch.backends` since 2.5."""
    environment = cures.environment
    torch, variable = environment.torch, "TORCH_DEVICE_BACKEND_AUTOLOAD"
    if torch is None or torch.base is None or (torch.base.major, torch.base.minor) < (2, 5):
        return
    if environment.variables.get(variable) == "0":
        return
    for package in environment.visible.values():
        for value in package.backends:
            if lacking := _lacking(environment, package, value):
                yield Finding(
                    "broken-backend-of-torch",
                    Severity.FAULT,
                    f"{package.name} {package.version} lets `import torch` call {value}, and {lacking}",
                    "`import torch` fails with `Failed to load the backend extension`",
                    (cures.remove(package.name),),
                    f"`export {variable}=0` lets torch ignore such packages",
                )


def _lacking(environment: InstalledEnvironment, package: InstalledPackage, value: str) -> str:
    """What does not exist of an entry point `module:function`; empty if it exists, or if its file is not source."""
    module, _, name = (part.strip() for part in value.partition(":"))
    places = [folder.joinpath(*module.split(".")) for folder in environment.interpreter.path]
    files = [file for place in places for file in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        known = package.source or any(one.is_dir() or [*one.parent.glob(f"{one.name}.*")] for one in places)
        return "" if known else f"there is no module {module}"
    text, first = file.read_text("utf-8", errors="replace"), name.partition(".")[0]
    found = not first or re.search(rf"\b{re.escape(first)}\b|import \*|\b__getattr__\b", text)
    return "" if found else f"{file} has no {first}"


def _leftovers(cures: Cures) -> Iterator[Finding]:
    """What pip renames while it uninstalls, and restores or deletes at the end."""
    if left := cures.environment.leftovers:
        yield Finding(
            "leftovers-of-pip",
            Severity.NOTE,
            f"an interrupted uninstallation left {', '.join(path.name for path in left)} in {left[0].parent}",
            "pip ignores names that begin with `~`, and warns of them; they take space",
            (shlex.join(["rm", "-r", *map(str, left)]),),
        )


def _backend_of_uv(cures: Cures) -> Iterator[Finding]:
    """No setting of uv chooses the index of torch."""
    environment, variable = cures.environment, "UV_TORCH_BACKEND"
    value, files = environment.variables.get(variable), ", ".join(map(str, environment.torch_backends))
    if value or files:
        yield Finding(
            "torch-backend-of-uv",
            Severity.NOTE,
            f"{f'{variable}={value}' if value else f'`torch-backend` in {files}'} chooses the index of torch for uv",
            "`uv pip install` may install another torch than its command and the printed commands name",
            (f"unset {variable}",) if value else (),
            f"delete `torch-backend` from {files}" if files else "",
        )


def _text(requirement: object) -> str:
    return str(requirement).partition(";")[0].strip()
