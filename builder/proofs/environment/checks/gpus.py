"""Driver, GPUs and NVIDIA's packages against torch."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.errors import UsageError
from builder.matrix.axes import Cuda, Gpu
from builder.proofs.cells.driver import driver_floor, driver_runs
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage, TorchInstall
from builder.proofs.environment.fit import fitting_torch, nvrtc_knows, unsupported_gpus
from builder.wheelfile.compatibility import runs_on
from builder.wheelfile.fatbin import read_device_code

# NVIDIA's packages: those of another CUDA major version than torch's, and files that they overwrote.


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
            Severity.FAULT,
            f"packages of another CUDA major version than torch's are installed: {listed}",
            why + ("both have files of the same names, and the newer installation overwrote the other"
                   if overlapping else "no package requires the others, and a program may load them by mistake"),
            (cures.remove(*(package.name for package in leftovers)), *restore),
        )  # fmt: skip
    elif damaged := [package for package in overlapping if _overwritten(package)]:
        yield Finding(
            "overwritten-cuda-files",
            Severity.FAULT,
            f"files of {', '.join(package.name for package in damaged)} were overwritten by {listed}",
            why + "both have files of the same names",
            (cures.restore(damaged, index),),
            f"{_names(users)} then find the files of CUDA {torch.cuda.major}: give them an environment of their own",
        )
    else:
        what = f"packages of two CUDA major versions are installed: {_names(users)} require {listed}"
        yield Finding("two-cuda-majors", Severity.NOTE, what, why + "both work side by side if no file is shared")


def cuda_major(package: InstalledPackage) -> int | None:
    """The CUDA major version that a package of NVIDIA is for; None for others."""
    if not package.name.startswith("nvidia-"):
        return None
    if named := re.search(r"-cu(\d+)$", package.name):
        return int(named[1])
    # Since CUDA 13, names have no suffix, and the files are in nvidia/cu13.
    found = {int(m[1]) for path in package.libraries if (m := re.match(r"nvidia/cu(\d+)/", path))}
    return found.pop() if len(found) == 1 else None


def _by_major(environment: InstalledEnvironment, major: int) -> tuple[list[InstalledPackage], list[InstalledPackage]]:
    """NVIDIA's packages of this CUDA major version, and those of others."""
    found = [(package, cuda_major(package)) for _, package in sorted(environment.visible.items())]
    return [p for p, m in found if m == major], [p for p, m in found if m not in (None, major)]


def _users(environment: InstalledEnvironment, package: InstalledPackage) -> set[str]:
    """The installed packages that require a package. An extra counts: nothing says which ones were asked for."""
    return {
        other.name
        for other in environment.visible.values()
        for one in other.requirements(environment.interpreter.markers, _extras(other))
        if canonicalize_name(one.name) == package.name
    }


def _extras(package: InstalledPackage) -> set[str]:
    """The extras that the requirements of a package name."""
    return {found for line in package.requires for found in re.findall(r"""extra\s*==\s*["']([\w.-]+)""", line)}


def _names(users: dict[str, set[str]]) -> str:
    return ", ".join(sorted({name for names in users.values() for name in names})) or "no package"


def _overwritten(package: InstalledPackage) -> bool:
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


def check_gpus(cures: Cures) -> Iterator[Finding]:
    """The driver runs torch's CUDA, and torch has code for each GPU."""
    environment = cures.environment
    torch, machine = environment.torch, environment.machine
    if torch is None:
        return
    if torch.cuda is None:
        if machine.gpus:
            what = f"torch {torch.version} is a CPU build, which cannot use the {machine.gpus[0].name}"
            why = "`torch.cuda.is_available()` is False"
            yield Finding("torch-without-cuda", Severity.NOTE, what, why, *_other_torch(cures))
        return
    if machine.driver and not driver_runs(machine.driver, torch.cuda, cures.compat):
        yield _old_driver(cures, torch, torch.cuda)
    codes = torch_code(cures, torch)
    for gpu in dict.fromkeys(machine.gpus):
        if codes and not runs_on(codes, gpu.arch):
            yield _no_code(cures, torch, gpu, codes)
        elif not nvrtc_knows(nvrtc_cuda(environment, torch.cuda), gpu.arch, cures.compat):
            yield _no_nvrtc(cures, torch, gpu)


def _old_driver(cures: Cures, torch: TorchInstall, cuda: Cuda) -> Finding:
    floor = driver_floor(cuda, cures.compat)
    driver = cures.environment.machine.driver
    cure, advice = _other_torch(cures)
    return Finding(
        "driver-too-old",
        Severity.FAULT,
        f"NVIDIA's driver {driver} is too old for torch {torch.version}: CUDA {cuda} needs driver {floor} or newer",
        "torch finds no GPU: `The NVIDIA driver on your system is too old`",
        cure,
        f"or update the driver to {floor} or newer" if cure else advice,
    )


def _no_code(cures: Cures, torch: TorchInstall, gpu: Gpu, codes: tuple[str, ...]) -> Finding:
    return Finding(
        "gpu-unknown-to-torch",
        Severity.FAULT,
        f"torch {torch.version} has no code for the {gpu.name} ({gpu.arch.sm}), only for {', '.join(codes)}",
        "the first kernel fails with `no kernel image is available for execution on the device`",
        *_other_torch(cures),
    )


def _no_nvrtc(cures: Cures, torch: TorchInstall, gpu: Gpu) -> Finding:
    return Finding(
        "gpu-unknown-to-nvrtc",
        Severity.FAULT,
        f"the runtime compiler of CUDA {torch.cuda} in torch {torch.version} does not know the {gpu.name}"
        f" ({gpu.arch.sm})",
        "some ops fail with `nvrtc: error: invalid value for --gpu-architecture (-arch)`",
        *_other_torch(cures),
    )


def _other_torch(cures: Cures) -> tuple[tuple[str, ...], str]:
    """The command that installs a torch for this Python, driver and these GPUs, or why there is none."""
    if fit := fitting_torch(cures.environment, cures.compat):
        return (cures.change_torch(*fit),), ""
    if none := unsupported_gpus(cures.environment, cures.compat):
        return (), f"no torch in buildfarm's version table supports the {_named(none)}"
    machine = cures.environment.machine
    gpus = _named(machine.gpus)
    where = " and ".join(filter(None, [machine.driver and f"driver {machine.driver}", gpus]))
    return (), (
        f"no torch in buildfarm's version table is for Python {cures.environment.interpreter.python} and {where}:"
        " update the driver or Python"
    )


def _named(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.name} ({gpu.arch.sm})" for gpu in gpus)


def torch_code(cures: Cures, torch: TorchInstall) -> tuple[str, ...]:
    """The machine code in torch's libraries (`sm_90`); from compat.yaml if the libraries cannot be read."""
    codes: dict[str, int] = {}
    for library in sorted(torch.libraries.glob("libtorch_cuda*.so")):
        try:
            codes.update(read_device_code(library).sizes)
        except UsageError:
            continue
    if codes:
        return tuple(sorted(codes, key=lambda code: (code.startswith("compute"), len(code), code)))
    if torch.release is None or torch.cuda is None or torch.release not in cures.compat.torches:
        return ()
    return tuple(a.sm for a in cures.compat.official_archs(torch.release, torch.cuda, cures.environment.platform))


def nvrtc_cuda(environment: InstalledEnvironment, cuda: Cuda) -> Cuda:
    """The CUDA of the NVRTC that torch loads: that of its package, else torch's."""
    for name in (f"nvidia-cuda-nvrtc-cu{cuda.major}", "nvidia-cuda-nvrtc"):
        if package := environment.visible.get(name):
            major, minor, *_ = [*package.version.split("."), "", ""]
            if major.isdecimal() and minor.isdecimal() and int(major) == cuda.major:
                return Cuda(int(major), int(minor))
    return cuda
