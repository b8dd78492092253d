"""The machine: its driver and GPUs against torch."""

from collections.abc import Iterator, Sequence

from builder.errors import UsageError
from builder.matrix.axes import Cuda, Gpu
from builder.proofs.cells.driver import driver_floor, driver_runs
from builder.proofs.environment.cures import Cures, Finding, fault, note
from builder.proofs.environment.facts import InstalledEnvironment, TorchInstall
from builder.wheelfile.compatibility import codes_for
from builder.wheelfile.fatbin import read_device_code


def check_gpus(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """The driver runs torch's CUDA, and torch has code for each GPU."""
    environment, machine, cuda = cures.environment, cures.environment.machine, torch.cuda
    if cuda is None:
        if machine.gpus:
            what = f"torch {torch.version} is a CPU build, which cannot use the {machine.gpus[0].name}"
            yield note("torch-without-cuda", what, "`torch.cuda.is_available()` is False", *_other_torch(cures))
        return
    if machine.driver and not driver_runs(machine.driver, cuda, cures.compat):
        floor, (cure, advice) = driver_floor(cuda, cures.compat), _other_torch(cures)
        yield fault(
            "driver-too-old",
            f"NVIDIA's driver {machine.driver} is too old for torch {torch.version}: CUDA {cuda} needs driver {floor}"
            " or newer",
            "torch finds no GPU: `The NVIDIA driver on your system is too old`",
            cure,
            f"driver {floor} or newer runs the installed torch" if cure else advice,
        )
    codes = _torch_code(cures, torch)
    for gpu in dict.fromkeys(machine.gpus):
        if codes and not codes_for(codes, gpu.arch):
            yield fault(
                "gpu-unknown-to-torch",
                f"torch {torch.version} has no code for the {_named([gpu])}, only for {', '.join(codes)}",
                "the first kernel fails with `no kernel image is available for execution on the device`",
                *_other_torch(cures),
            )
        elif not cures.nvrtc_knows(_nvrtc_cuda(environment, cuda), gpu.arch):
            yield fault(
                "gpu-unknown-to-nvrtc",
                f"the runtime compiler of CUDA {cuda} in torch {torch.version} does not know the {_named([gpu])}",
                "some ops fail with `nvrtc: error: invalid value for --gpu-architecture (-arch)`",
                *_other_torch(cures),
            )


def _other_torch(cures: Cures) -> tuple[tuple[str, ...], str]:
    """The command that installs a torch for this Python, driver and these GPUs, or why there is none."""
    if cure := cures.fitting_torch():
        return cure, ""
    if none := cures.unsupported_gpus():
        return (), f"no torch in buildfarm's version table supports the {_named(none)}"
    machine = cures.environment.machine
    where = " and ".join(filter(None, [machine.driver and f"driver {machine.driver}", _named(machine.gpus)]))
    return (), (
        f"no torch in buildfarm's version table is for Python {cures.environment.interpreter.python} and {where}:"
        " update the driver or Python"
    )


def _named(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.name} ({gpu.arch.sm})" for gpu in gpus)


def _torch_code(cures: Cures, torch: TorchInstall) -> tuple[str, ...]:
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


def _nvrtc_cuda(environment: InstalledEnvironment, cuda: Cuda) -> Cuda:
    """The CUDA of the NVRTC that torch loads: that of its package, else torch's."""
    for name in (f"nvidia-cuda-nvrtc-cu{cuda.major}", "nvidia-cuda-nvrtc"):
        if package := environment.visible.get(name):
            major, minor, *_ = [*package.version.split("."), "", ""]
            if major.isdecimal() and minor.isdecimal() and int(major) == cuda.major:
                return Cuda(int(major), int(minor))
    return cuda
