"""Installed packages with torch extensions: whether this torch has their symbols, and this GPU runs their code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from builder.errors import BuildfarmError
from builder.gate.amounts import join_names
from builder.gate.system.demangle import demangle
from builder.matrix.axes import Arch, Cell, Cuda, Gpu, Torch
from builder.proofs.claimed_cells import links_torch
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.proofs.environment.facts import TorchInstall
from builder.proofs.environment.fit import Extension, fitting_torch, torch_extensions
from builder.proofs.static.linkage import check_linkage
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.proofs.static.system_symbols import is_torch_cxx
from builder.wheelfile.compatibility import runs_on

#: Libraries of torch and CUDA. Whether others exist is no question of torch: a program may load them from anywhere.
_OURS = re.compile(
    r"lib(?:torch|c10|cuda|cudart|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink)\w*\.so"
)
_CUDA_LIBRARY = re.compile(r"lib(?:torch_cuda|c10_cuda|cudart|cublas|cudnn)\w*\.so")


def check_extensions(cures: Cures) -> Iterator[Finding]:
    """Every package with torch extensions loads with this torch, and has code for each GPU."""
    torch = cures.environment.torch
    base = torch.base if torch else None
    if torch is None or base is None:
        return
    try:
        table = collect_symbols(torch.folder)
    except BuildfarmError:
        # conda has libtorch outside of torch/lib, and `check_torch` reports deleted files
        if not (torch.package and (torch.package.installer == "conda" or torch.package.lost_libraries)):
            yield _incomplete(cures, torch)
        return
    for extension in torch_extensions(cures.environment):
        if extension.damaged:
            yield _damaged(cures, extension)
            continue
        yield from _requirement(cures, torch, extension)
        linkage = _linkage(cures, torch, base, extension, table)
        yield from linkage
        if not linkage:
            yield from _gpus(cures, extension)


def _incomplete(cures: Cures, torch: TorchInstall) -> Finding:
    what = f"torch {torch.version} in {torch.folder} has no libtorch_cpu.so that can be read"
    cure = (cures.restore([torch.package], cures.index_of(torch)),) if torch.package else ()
    return Finding(
        "incomplete-torch", Severity.FAULT, what, "`import torch` fails: files were deleted or damaged", cure
    )


def _damaged(cures: Cures, extension: Extension) -> Finding:
    package = extension.package
    what = f"{package.name} {package.version} is damaged: {extension.damaged[0]}"
    return Finding("damaged-extension", Severity.FAULT, what, "its import fails", (cures.restore([package]),))


def _requirement(cures: Cures, torch: TorchInstall, extension: Extension) -> Iterator[Finding]:
    """A note for a package that asks for another torch; whether it really needs it, its symbols show."""
    package = extension.package
    wanted = package.torch_requirement(cures.environment.interpreter.markers)
    if wanted is None or package.name in cures.compat.companions or wanted.specifier.contains(str(torch.base)):
        return
    what = f"{package.name} {package.version} requires {wanted}, but torch {torch.version} is installed"
    why = "its authors did not test it with this torch"
    yield Finding("other-torch-required", Severity.NOTE, what, why, _another_release(cures, torch, extension))


def _linkage(cures: Cures, torch: TorchInstall, base: Torch, extension: Extension, table: SymbolTable) -> list[Finding]:
    """A fault if the linker would refuse a library of the package beside this torch."""
    environment, package = cures.environment, extension.package
    cell = Cell(base, torch.cuda or Cuda(0, 0), environment.interpreter.python, environment.platform)
    evidence = check_linkage(extension.facts, cell, table).evidence
    # A program chooses among libraries that do not link torch, such as one for each CUDA, and loads them itself.
    linked = {one.path for one in extension.facts.libraries if links_torch(one)}
    absent = {
        path: [name for name in names if _OURS.match(name)]
        for path, names in evidence["absent"].items()
        if path in linked
    }
    missing = {
        path: [symbol for symbol in symbols if path not in evidence["absent"] or is_torch_cxx(symbol)]
        for path, symbols in evidence["missing"].items()
        if path in linked
    }
    unlinked = [path for path, symbols in missing.items() if _in_libraries_of_torch(extension, path, symbols, table)]
    if unlinked:
        missing = {path: symbols for path, symbols in missing.items() if path not in unlinked}
    problems = [f"{path} needs {join_names(names)}" for path, names in absent.items() if names]
    problems += [
        f"{path} has the undefined symbol {join_names([demangle(name) for name in names])}"
        for path, names in missing.items()
        if names and not absent.get(path)
    ]
    if not problems:
        return [_unlinked(extension, unlinked)] if unlinked else []
    what = f"{package.name} {package.version} does not load with torch {torch.version}: {'; '.join(problems[:2])}"
    why, cure = _cause(cures, torch, extension, [name for names in absent.values() for name in names])
    advice = _advice(cures, extension, torch) if cure and cure == cures.compile(extension.package) else ""
    if not any(absent.values()):
        why += f": `undefined symbol: {next((n for names in missing.values() for n in names), '')}`"
    return [Finding("extension-of-another-torch", Severity.FAULT, what, why, cure, advice)]


def _in_libraries_of_torch(extension: Extension, path: str, symbols: Sequence[str], table: SymbolTable) -> bool:
    """Whether torch has all these symbols, and the library names no library of torch that it needs."""
    library = next(one for one in extension.facts.libraries if one.path == path)
    if not symbols or library.needs_torch:
        return False
    return all(any(symbol in one.defined for one in table.libraries.values()) for symbol in symbols)


def _unlinked(extension: Extension, paths: Sequence[str]) -> Finding:
    package = extension.package
    what = f"{package.name} {package.version} calls torch from a library that is not linked to it: {join_names(paths)}"
    why = "the library loads only after the package has made the symbols of torch global"
    return Finding("extension-not-linked-to-torch", Severity.NOTE, what, why)


def _cause(cures: Cures, torch: TorchInstall, extension: Extension, absent: list[str]) -> tuple[str, tuple[str, ...]]:
    """Why a package does not load, and the commands that mend it."""
    if torch.cuda is None and any(_CUDA_LIBRARY.match(name) for name in absent):
        fit = fitting_torch(cures.environment, cures.compat)
        return "the package was built for CUDA, and this torch is a CPU build", (
            cures.change_torch(*fit),
        ) if fit else ()
    wanted = extension.package.torch_requirement(cures.environment.interpreter.markers)
    if wanted and not wanted.specifier.contains(str(torch.base)):
        return f"the package requires {wanted}", _another_release(cures, torch, extension)
    majors = sorted({m[1] for name in absent if (m := re.match(r"libcudart\.so\.(\d+)", name))})
    if majors and torch.cuda:
        why = f"the package was built for CUDA {majors[0]}, and this torch for CUDA {torch.cuda.major}"
        return why, cures.compile(extension.package)
    return "the package was built for another torch", cures.compile(extension.package)


def _another_release(cures: Cures, torch: TorchInstall, extension: Extension) -> tuple[str, ...]:
    """Ask the installer for the release of the package that fits the installed torch."""
    keep = f"torch=={torch.package.version}" if torch.package else f"torch=={torch.version}"
    return (cures.upgrade(extension.package.name, keep),)


def _advice(cures: Cures, extension: Extension, torch: TorchInstall) -> str:
    """How to get a wheel if this machine has no nvcc for the compile; empty if it has one."""
    if not _lacks_nvcc(cures, torch):
        return ""
    lacks = f"if the package has CUDA sources, the compile needs nvcc of CUDA {torch.cuda}, which is not here"
    build = _build_command(cures, extension, torch)
    return f"{lacks}; `{build}` brings a toolkit of its own" if build else lacks


def _lacks_nvcc(cures: Cures, torch: TorchInstall) -> bool:
    """Whether this machine has no nvcc for the CUDA of a torch that buildfarm knows."""
    if torch.cuda is None or torch.release not in cures.compat.torches:
        return False
    return cures.environment.tools.nvcc.partition(".")[0] != str(torch.cuda.major)


def _build_command(cures: Cures, extension: Extension, torch: TorchInstall) -> str:
    """The command that builds a wheel of a package of the package index; empty for a package of another source."""
    package = extension.package
    if package.source:
        return ""
    words = ["buildfarm", "build", f"{package.name}=={package.public}", "--torch", str(torch.release)]
    words += ["--cuda", str(torch.cuda), "--python", str(cures.environment.interpreter.python)]
    return " ".join([*words, *(word for arch in cures.archs for word in ("--arch", str(arch)))])


def _gpus(cures: Cures, extension: Extension) -> Iterator[Finding]:
    """A fault if no library has code for a GPU; a note if some have none, since a package may have one for each GPU."""
    package = extension.package
    codes = {one.path: (*one.sass, *one.ptx) for one in extension.facts.libraries if one.sass or one.ptx}
    for gpu in dict.fromkeys(cures.environment.machine.gpus):
        lacking = [path for path, found in codes.items() if not runs_on(found, gpu.arch)]
        if not lacking:
            continue
        which = f"{lacking[0]} has {join_names(codes[lacking[0]], 8)}"
        newer = all(
            (arch := Arch.of_code(code)) and arch.number > gpu.arch.number for found in codes.values() for code in found
        )
        what = f"{package.name} {package.version} has no code for the {gpu.name} ({gpu.arch.sm}): {which}"
        why = "its ops fail with `no kernel image is available for execution on the device`"
        if len(lacking) == len(codes) and newer:
            yield Finding(
                "extension-for-newer-gpus", Severity.NOTE, what, "the package has kernels for newer GPUs only"
            )
        elif len(lacking) == len(codes):
            yield Finding(
                "extension-without-code-for-gpu", Severity.FAULT, what, why, *_code_for(cures, extension, gpu)
            )
        else:
            why = "ops of other libraries of the package have code for this GPU; those of this one may not"
            yield Finding("library-without-code-for-gpu", Severity.NOTE, what, why)


def _code_for(cures: Cures, extension: Extension, gpu: Gpu) -> tuple[tuple[str, ...], str]:
    """The commands that compile a package for a GPU, unless torch's CUDA cannot."""
    torch = cures.environment.torch
    if torch and torch.cuda in cures.compat.cudas and (why := cures.compat.why_not_arch(torch.cuda, gpu.arch)):
        return (), why.reason
    if not torch or not _lacks_nvcc(cures, torch):
        return cures.compile(extension.package), ""
    lacks = f"without nvcc of CUDA {torch.cuda}, which is not here, pip and uv compile the package without its kernels"
    if not (build := _build_command(cures, extension, torch)):
        return cures.compile(extension.package), f"{lacks}: install it first"
    return (build,), f"{lacks}; this command brings a toolkit of its own, and prints how to install the wheel"
