"""Packages beside torch: companions and CUDA belong to this torch, and extensions load and run with it."""

import re
from collections.abc import Iterator, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import BuildfarmError, UsageError
from builder.gate.amounts import join_names
from builder.gate.system.process_end import demangle
from builder.matrix.axes import Cell, Cuda, Torch
from builder.proofs.claimed_cells import links_torch, uses_torch
from builder.proofs.environment.cures import Cures, Finding, fault, note
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage, TorchInstall
from builder.proofs.static.linkage import TORCH_OR_CUDA, check_linkage, is_torch_cxx
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.tested_versions import FIRST_SAFE, unsafe
from builder.wheelfile.compatibility import code_number, codes_for
from builder.wheelfile.elf import HEAD, MISHAPS, what_else
from builder.wheelfile.facts import WheelFacts, read_library

_CUDA_LIBRARY = re.compile(r"lib(?:torch_cuda|c10_cuda|cudart|cublas|cudnn)\w*\.so")


def read_package(package: InstalledPackage) -> tuple[WheelFacts, list[str]]:
    """The libraries of a package, as those of a wheel, and why others that exist could not be read."""
    libraries, damaged = [], []
    for path in sorted(package.libraries):
        file = package.folder / path
        if ".." in path or not file.is_file():
            continue
        try:
            library = read_library(path, file)
        except UsageError as error:
            damaged.append(f"{path}: {error.sentence}")
            continue
        if library is not None:
            libraries.append(library)
        elif (what := what_else(file.read_bytes()[:HEAD])) in MISHAPS:
            damaged.append(f"{path}: it is {what}")
    facts = WheelFacts(
        filename=f"{package.name}-{package.version}",
        sha256="",
        size=0,
        name=package.name,
        version=package.version,
        tags=(),
        requires_dist=package.requires,
        requires_python="",
        libraries=tuple(libraries),
        files=tuple(sorted(package.libraries)),
    )
    return facts, damaged


def check_extensions(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """Every package with torch extensions loads with this torch, and has code for each GPU."""
    if torch.base is None:
        return
    try:
        table = collect_symbols(torch.folder)
    except BuildfarmError:
        # conda has libtorch outside of torch/lib, and `check_files` reports deleted files
        if not (torch.package and (torch.package.installer == "conda" or torch.package.lost_libraries)):
            what = f"torch {torch.version} in {torch.folder} has no libtorch_cpu.so that can be read"
            cure = (cures.restore([torch.package], cures.index_of(torch)),) if torch.package else ()
            yield fault("incomplete-torch", what, "`import torch` fails: files were deleted or damaged", cure)
        return
    python, platform = cures.environment.interpreter.python, cures.environment.platform
    cell = Cell(torch.base, torch.cuda or Cuda(0, 0), python, platform)
    for name, package in cures.environment.visible.items():
        if not package.libraries or name == "torch" or name.startswith(("nvidia-", "triton")):
            continue
        facts, damaged = read_package(package)
        if not (facts.libraries or damaged) or not uses_torch(facts):
            continue
        if damaged:
            what = f"{package} is damaged: {damaged[0]}"
            yield fault("damaged-extension", what, "its import fails", (cures.restore([package]),))
            continue
        # Whether the package really needs the torch that it asks for, its symbols show.
        if (other := _other_torch(cures, torch, package)) and name not in cures.compat.companions:
            what = f"{package} requires {other}, but torch {torch.version} is installed"
            why = "its authors did not test it with this torch"
            yield note("other-torch-required", what, why, _another_release(cures, torch, package))
        yield from [*_linkage(cures, torch, package, facts, cell, table)] or _gpus(cures, torch, package, facts)


def _other_torch(cures: Cures, torch: TorchInstall, package: InstalledPackage) -> Requirement | None:
    """The requirement of a package that this torch does not meet."""
    wanted = package.torch_requirement(cures.environment.interpreter.markers)
    return wanted if wanted and not wanted.specifier.contains(str(torch.base)) else None


def _linkage(
    cures: Cures, torch: TorchInstall, package: InstalledPackage, facts: WheelFacts, cell: Cell, table: SymbolTable
) -> Iterator[Finding]:
    """A fault if the linker would refuse a library of the package beside this torch."""
    evidence = check_linkage(facts, cell, table).evidence
    needs, lacks = list[str](), list[str]()  # as sentences
    absent, undefined = list[str](), list[str]()
    # A program chooses among libraries that do not link torch, such as one for each CUDA, and loads them itself.
    for library in (one for one in facts.libraries if links_torch(one)):
        path, lost = library.path, evidence["absent"].get(library.path)
        # Whether others exist is no question of torch: a program may load them from anywhere.
        names = [name for name in lost or () if TORCH_OR_CUDA.match(name)]
        missing = [name for name in evidence["missing"].get(path, ()) if lost is None or is_torch_cxx(name)]
        has_all = all(any(symbol in one.defined for one in table.libraries.values()) for symbol in missing)
        if not library.needs_torch and has_all:  # it loads after the package has made the symbols of torch global
            missing = []
        absent += names
        undefined += missing
        if names:
            needs.append(f"{path} needs {join_names(names)}")
        elif missing:
            lacks.append(f"{path} has the undefined symbol {join_names([demangle(name) for name in missing])}")
    if problems := [*needs, *lacks]:
        what = f"{package} does not load with torch {torch.version}: {'; '.join(problems[:2])}"
        why, cure, advice = _cause(cures, torch, package, facts, absent)
        why += "" if absent else f": `undefined symbol: {undefined[0]}`"
        yield fault("extension-of-another-torch", what, why, cure, advice)


def _cause(
    cures: Cures, torch: TorchInstall, package: InstalledPackage, facts: WheelFacts, absent: Sequence[str]
) -> tuple[str, tuple[str, ...], str]:
    """Why a package does not load, the commands that mend it, and what else a person can do."""
    if torch.cuda is None and any(_CUDA_LIBRARY.match(name) for name in absent):
        return "the package was built for CUDA, and this torch is a CPU build", cures.fitting_torch(), ""
    if other := _other_torch(cures, torch, package):
        build = f"`buildfarm build {package.name}=={package.public} --torch {torch.release}`"
        advice = f"if the package index has no wheel of a release that fits, build one: {build}"
        return f"the package requires {other}", _another_release(cures, torch, package), advice
    majors = sorted({m[1] for name in absent if (m := re.match(r"libcudart\.so\.(\d+)", name))})
    why = "the package was built for another torch"
    if majors and torch.cuda:
        why = f"the package was built for CUDA {majors[0]}, and this torch for CUDA {torch.cuda.major}"
    return why, *_compile(cures, torch, package, facts)


def _another_release(cures: Cures, torch: TorchInstall, package: InstalledPackage) -> tuple[str, ...]:
    """Ask the installer for the release of the package that fits the installed torch."""
    version = torch.package.version if torch.package else torch.version
    return (cures.install("--upgrade-package", package.name, package.name, f"torch=={version}"),)


def _compile(
    cures: Cures, torch: TorchInstall, package: InstalledPackage, facts: WheelFacts
) -> tuple[tuple[str, ...], str]:
    """The commands that compile a package for this torch and these GPUs, and what a person should know about them.

    Without nvcc, pip and uv leave the kernels out. buildfarm brings an nvcc, but reads the package index only.
    """
    environment = cures.environment
    has_nvcc = torch.cuda is None or environment.nvcc.partition(".")[0] == str(torch.cuda.major)
    if has_nvcc or torch.release not in cures.compat.torches:
        return cures.compile(package), ""
    words = ["buildfarm", "build", f"{package.name}=={package.public}", "--torch", str(torch.release)]
    words += ["--cuda", str(torch.cuda), "--python", str(environment.interpreter.python)]
    words += [word for arch in cures.archs for word in ("--arch", str(arch))]
    build = " ".join(words)
    lacks = f"without nvcc of CUDA {torch.cuda}, which is not here, pip and uv compile the package without its kernels"
    if package.source:
        return cures.compile(package), f"{lacks}: install it first"
    if any(one.sass or one.ptx for one in facts.libraries):
        return (build,), f"{lacks}; this command brings a toolkit of its own, and prints how to install the wheel"
    return cures.compile(package), f"if it has CUDA sources, compile it by `{build}`: {lacks}"


def _gpus(cures: Cures, torch: TorchInstall, package: InstalledPackage, facts: WheelFacts) -> Iterator[Finding]:
    """A fault if no library has code for a GPU: a package may have one library for each GPU.

    Kernels for newer GPUs only are none if the package has code for another GPU of the machine, or ops without any.
    """
    codes = {one.path: (*one.sass, *one.ptx) for one in facts.libraries if one.sass or one.ptx}
    gpus = dict.fromkeys(cures.environment.machine.gpus)
    useful = any(one.path not in codes and links_torch(one) for one in facts.libraries) or any(
        codes_for(found, gpu.arch) for found in codes.values() for gpu in gpus
    )
    for gpu in gpus:
        if not codes or any(codes_for(found, gpu.arch) for found in codes.values()):
            continue
        if useful and all(code_number(code) > gpu.arch.number for found in codes.values() for code in found):
            continue
        path, found = next(iter(codes.items()))
        what = f"{package} has no code for the {gpu.name} ({gpu.arch.sm}): {path} has {join_names(found, 8)}"
        cure, advice = _compile(cures, torch, package, facts)
        if torch.cuda in cures.compat.cudas and (reason := cures.compat.why_not_arch(torch.cuda, gpu.arch)):
            cure, advice = (), reason.reason  # torch's CUDA cannot compile for it
        why = "its ops fail with `no kernel image is available for execution on the device`"
        yield fault("extension-without-code-for-gpu", what, why, cure, advice)


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
    shared = {path for package in others for path in package.libraries}
    own = [package for package, major in majors if major == torch.cuda.major]
    overlapping = [package for package in own if shared & set(package.libraries)]
    names = {package.name for package in others}
    leftovers = [package for package in others if not _users(environment, package) - names]
    if not leftovers:
        return
    cause = "no package requires the others, and a program may load them by mistake"
    cure = [cures.remove(*(package.name for package in leftovers))]
    if overlapping:
        cause = "both have files of the same names, and the newer installation overwrote the other"
        cure.append(cures.restore(overlapping, index))
    what = f"packages of another CUDA major version than torch's are installed: {', '.join(map(str, others))}"
    why = f"torch {torch.version} uses CUDA {torch.cuda.major}; {cause}"
    yield fault("two-cuda-majors", what, why, tuple(cure))


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


def check_safe_versions(cures: Cures) -> Iterator[Finding]:
    """A note for each package; `buildfarm build` warns about the same ones in its own environment, and about more."""
    visible = cures.environment.visible
    for name, sentence in unsafe({name: visible[name].version for name in FIRST_SAFE if name in visible}).items():
        why = "whoever has the keys of these authorities can pose as the server of a download"
        yield note("unsafe-version", sentence, why, (cures.install(f"{name}>={FIRST_SAFE[name]}"),))
