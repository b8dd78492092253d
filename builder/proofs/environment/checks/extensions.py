"""Installed packages with torch extensions: whether this torch has their symbols, and this GPU runs their code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from builder.errors import BuildfarmError, UsageError
from builder.gate.amounts import join_names
from builder.gate.system.demangle import demangle
from builder.matrix.axes import Cell, Cuda, Torch
from builder.proofs.claimed_cells import links_torch, uses_torch
from builder.proofs.environment.cures import Cures, Finding, fault, note
from builder.proofs.environment.facts import InstalledPackage, TorchInstall
from builder.proofs.static.linkage import check_linkage
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.proofs.static.system_symbols import is_torch_cxx
from builder.wheelfile.compatibility import code_number, runs_on
from builder.wheelfile.elf import HEAD, MISHAPS, what_else
from builder.wheelfile.facts import WheelFacts, read_library

#: Libraries of torch and CUDA. Whether others exist is no question of torch: a program may load them from anywhere.
_OURS = re.compile(
    r"lib(?:torch|c10|cuda|cudart|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink)\w*\.so"
)
_CUDA_LIBRARY = re.compile(r"lib(?:torch_cuda|c10_cuda|cudart|cublas|cudnn)\w*\.so")


@dataclass(frozen=True)
class Extension:
    """An installed package with libraries that use torch."""

    #: The package.
    package: InstalledPackage
    #: Its libraries, as those of a wheel.
    facts: WheelFacts
    #: Why libraries could not be read.
    damaged: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name and version, as findings show them."""
        return f"{self.package.name} {self.package.version}"


def read_package(package: InstalledPackage) -> Extension:
    """Read the libraries of a package. Missing files and files of other formats are left out."""
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
    return Extension(package, facts, tuple(damaged))


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
    for name, package in cures.environment.visible.items():
        if not package.libraries or name == "torch" or name.startswith(("nvidia-", "triton")):
            continue
        extension = read_package(package)
        if not (extension.facts.libraries or extension.damaged) or not uses_torch(extension.facts):
            continue
        if extension.damaged:
            what = f"{extension.name} is damaged: {extension.damaged[0]}"
            yield fault("damaged-extension", what, "its import fails", (cures.restore([package]),))
            continue
        yield from _requirement(cures, torch, extension)
        linkage = [*_linkage(cures, torch, torch.base, extension, table)]
        yield from linkage or _gpus(cures, torch, extension)


def _requirement(cures: Cures, torch: TorchInstall, extension: Extension) -> Iterator[Finding]:
    """A note for a package that asks for another torch; whether it really needs it, its symbols show."""
    wanted = extension.package.torch_requirement(cures.environment.interpreter.markers)
    other = wanted and not wanted.specifier.contains(str(torch.base))
    if other and extension.package.name not in cures.compat.companions:
        what = f"{extension.name} requires {wanted}, but torch {torch.version} is installed"
        why = "its authors did not test it with this torch"
        yield note("other-torch-required", what, why, _another_release(cures, torch, extension))


def _linkage(
    cures: Cures, torch: TorchInstall, base: Torch, extension: Extension, table: SymbolTable
) -> Iterator[Finding]:
    """A fault if the linker would refuse a library of the package beside this torch."""
    cell = Cell(base, torch.cuda or Cuda(0, 0), cures.environment.interpreter.python, cures.environment.platform)
    evidence = check_linkage(extension.facts, cell, table).evidence
    needs, lacks = list[str](), list[str]()  # as sentences
    absent, undefined, unlinked = list[str](), list[str](), list[str]()
    # A program chooses among libraries that do not link torch, such as one for each CUDA, and loads them itself.
    for library in (one for one in extension.facts.libraries if links_torch(one)):
        path, lost = library.path, evidence["absent"].get(library.path)
        names = [name for name in lost or () if _OURS.match(name)]
        missing = [name for name in evidence["missing"].get(path, ()) if lost is None or is_torch_cxx(name)]
        if missing and not library.needs_torch and _has_all(table, missing):
            unlinked.append(path)
            missing = []
        absent += names
        undefined += missing
        if names:
            needs.append(f"{path} needs {join_names(names)}")
        elif missing:
            lacks.append(f"{path} has the undefined symbol {join_names([demangle(name) for name in missing])}")
    if problems := [*needs, *lacks]:
        what = f"{extension.name} does not load with torch {torch.version}: {'; '.join(problems[:2])}"
        why, cure, advice = _cause(cures, torch, extension, absent)
        why += "" if absent else f": `undefined symbol: {undefined[0]}`"
        yield fault("extension-of-another-torch", what, why, cure, advice)
    elif unlinked:
        what = f"{extension.name} calls torch from a library that is not linked to it: {join_names(unlinked)}"
        why = "the library loads only after the package has made the symbols of torch global"
        yield note("extension-not-linked-to-torch", what, why)


def _has_all(table: SymbolTable, symbols: Sequence[str]) -> bool:
    """Whether libraries of torch define all these symbols."""
    return all(any(symbol in one.defined for one in table.libraries.values()) for symbol in symbols)


def _cause(
    cures: Cures, torch: TorchInstall, extension: Extension, absent: Sequence[str]
) -> tuple[str, tuple[str, ...], str]:
    """Why a package does not load, the commands that mend it, and what else a person can do."""
    if torch.cuda is None and any(_CUDA_LIBRARY.match(name) for name in absent):
        return "the package was built for CUDA, and this torch is a CPU build", cures.fitting_torch(), ""
    wanted = extension.package.torch_requirement(cures.environment.interpreter.markers)
    if wanted and not wanted.specifier.contains(str(torch.base)):
        return f"the package requires {wanted}", _another_release(cures, torch, extension), ""
    majors = sorted({m[1] for name in absent if (m := re.match(r"libcudart\.so\.(\d+)", name))})
    why = "the package was built for another torch"
    if majors and torch.cuda:
        why = f"the package was built for CUDA {majors[0]}, and this torch for CUDA {torch.cuda.major}"
    return why, *_compile(cures, torch, extension)


def _another_release(cures: Cures, torch: TorchInstall, extension: Extension) -> tuple[str, ...]:
    """Ask the installer for the release of the package that fits the installed torch."""
    version = torch.package.version if torch.package else torch.version
    return (cures.upgrade(extension.package.name, f"torch=={version}"),)


def _compile(cures: Cures, torch: TorchInstall, extension: Extension) -> tuple[tuple[str, ...], str]:
    """The commands that compile a package for this torch and these GPUs, and what a person should know about them.

    Without nvcc, pip and uv leave the kernels out. buildfarm brings an nvcc, but reads the package index only.
    """
    package, environment = extension.package, cures.environment
    has_nvcc = torch.cuda is None or environment.tools.nvcc.partition(".")[0] == str(torch.cuda.major)
    if has_nvcc or torch.release not in cures.compat.torches:
        return cures.compile(package), ""
    words = ["buildfarm", "build", f"{package.name}=={package.public}", "--torch", str(torch.release)]
    words += ["--cuda", str(torch.cuda), "--python", str(environment.interpreter.python)]
    words += [word for arch in cures.archs for word in ("--arch", str(arch))]
    build = " ".join(words)
    if not any(one.sass or one.ptx for one in extension.facts.libraries):
        lacks = f"if the package has CUDA sources, the compile needs nvcc of CUDA {torch.cuda}, which is not here"
        more = "" if package.source else f"; `{build}` brings a toolkit of its own"
        return cures.compile(package), lacks + more
    lacks = f"without nvcc of CUDA {torch.cuda}, which is not here, pip and uv compile the package without its kernels"
    if package.source:
        return cures.compile(package), f"{lacks}: install it first"
    return (build,), f"{lacks}; this command brings a toolkit of its own, and prints how to install the wheel"


def _gpus(cures: Cures, torch: TorchInstall, extension: Extension) -> Iterator[Finding]:
    """A fault if no library has code for a GPU; a note if some have none, since a package may have one for each GPU."""
    codes = {one.path: (*one.sass, *one.ptx) for one in extension.facts.libraries if one.sass or one.ptx}
    for gpu in dict.fromkeys(cures.environment.machine.gpus):
        lacking = [path for path, found in codes.items() if not runs_on(found, gpu.arch)]
        if not lacking:
            continue
        what = (
            f"{extension.name} has no code for the {gpu.name} ({gpu.arch.sm}): {lacking[0]} has"
            f" {join_names(codes[lacking[0]], 8)}"
        )
        if len(lacking) < len(codes):
            why = "ops of other libraries of the package have code for this GPU; those of this one may not"
            yield note("library-without-code-for-gpu", what, why)
        elif all(code_number(code) > gpu.arch.number for found in codes.values() for code in found):
            yield note("extension-for-newer-gpus", what, "the package has kernels for newer GPUs only")
        else:
            cure, advice = _compile(cures, torch, extension)
            if torch.cuda in cures.compat.cudas and (reason := cures.compat.why_not_arch(torch.cuda, gpu.arch)):
                cure, advice = (), reason.reason  # torch's CUDA cannot compile for it
            why = "its ops fail with `no kernel image is available for execution on the device`"
            yield fault("extension-without-code-for-gpu", what, why, cure, advice)
