"""Which torch an environment can use, by compat.yaml and by what is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.errors import UsageError
from builder.matrix.axes import Arch, Cuda, Gpu, Torch
from builder.matrix.compat import Compat
from builder.proofs.cells.driver import driver_runs
from builder.proofs.claimed_cells import uses_torch
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage
from builder.wheelfile.compatibility import runs_on
from builder.wheelfile.elf import HEAD, MISHAPS, what_else
from builder.wheelfile.facts import WheelFacts, read_library

# The facts of an installed package, as `builder.wheelfile.facts` has them for a wheel.


@dataclass(frozen=True)
class Extension:
    """An installed package with libraries that use torch."""

    #: The package.
    package: InstalledPackage
    #: Its libraries, as those of a wheel.
    facts: WheelFacts
    #: Why libraries could not be read.
    damaged: tuple[str, ...]


def torch_extensions(environment: InstalledEnvironment) -> list[Extension]:
    """The packages whose libraries use torch, without torch itself and NVIDIA's packages."""
    found = (
        installed(package)
        for name, package in environment.visible.items()
        if package.libraries and name != "torch" and not name.startswith(("nvidia-", "triton"))
    )
    return [one for one in found if (one.facts.libraries or one.damaged) and uses_torch(one.facts)]


def installed(package: InstalledPackage) -> Extension:
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


def nvrtc_knows(cuda: Cuda, gpu: Arch, compat: Compat) -> bool:
    """Whether the runtime compiler (NVRTC) of a CUDA compiles for a GPU; an unknown CUDA counts as able."""
    try:
        return gpu in compat.toolkit(cuda).archs
    except UsageError:
        return True


def fitting_torch(environment: InstalledEnvironment, compat: Compat) -> tuple[Torch, Cuda] | None:
    """The torch nearest to the installed one that this Python, driver and these GPUs can use, and its CUDA.

    The same release with another CUDA comes first, then the next newer release, then older ones.
    """
    installed = environment.torch
    now = installed.release if installed else None
    cuda = installed.cuda if installed else None

    def distance(found: tuple[Torch, Cuda]) -> tuple[object, ...]:
        torch, its_cuda = found
        return (
            torch != now,
            now is not None and torch < now,
            abs(100 * torch.major + torch.minor - 100 * now.major - now.minor) if now else 0,
            cuda is None or its_cuda.major != cuda.major,
            not compat.is_default_variant(torch, its_cuda),
            (-its_cuda.major, -its_cuda.minor),
            (-torch.major, -torch.minor, -torch.patch),
        )

    return min(_usable(environment, compat), key=distance, default=None)


def _usable(environment: InstalledEnvironment, compat: Compat) -> Iterator[tuple[Torch, Cuda]]:
    """Every torch and CUDA that has a wheel for this Python, and that the driver and the GPUs can use."""
    python, platform, machine = environment.interpreter.python, environment.platform, environment.machine
    for torch in compat.torches:
        for cuda in compat.torch(torch).variants:
            if compat.why_not(torch, cuda, python, platform) or not driver_runs(machine.driver, cuda, compat):
                continue
            if all(_supports(torch, cuda, gpu, environment, compat) for gpu in machine.gpus):
                yield torch, cuda


def unsupported_gpus(environment: InstalledEnvironment, compat: Compat) -> list[Gpu]:
    """The GPUs that no torch of compat.yaml supports, whatever the Python and the driver."""
    every = [(torch, cuda) for torch in compat.torches for cuda in compat.torch(torch).variants]
    return [
        gpu
        for gpu in dict.fromkeys(environment.machine.gpus)
        if not any(_supports(torch, cuda, gpu, environment, compat) for torch, cuda in every)
    ]


def _supports(torch: Torch, cuda: Cuda, gpu: Gpu, environment: InstalledEnvironment, compat: Compat) -> bool:
    """Whether a GPU runs the code of a torch's wheel, and the CUDA compiles for it at run time."""
    codes = [arch.sm for arch in compat.official_archs(torch, cuda, environment.platform)]
    return runs_on(codes, gpu.arch) and nvrtc_knows(cuda, gpu.arch, compat)
