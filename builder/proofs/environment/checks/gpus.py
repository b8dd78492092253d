"""Driver and GPUs against torch: the driver's age, torch's machine code, and its runtime compiler (NVRTC)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.errors import UsageError
from builder.matrix.axes import Cuda
from builder.proofs.environment.cures import Cures
from builder.proofs.environment.facts import Environment, Gpu, TorchInstall
from builder.proofs.environment.finding import Finding, Level
from builder.proofs.environment.fit import driver_floor, driver_runs, fitting_torch, nvrtc_knows, unsupported_gpus
from builder.wheelfile.compatibility import runs_on
from builder.wheelfile.fatbin import read_device_code


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
            yield Finding("torch-without-cuda", Level.NOTE, what, why, *_other_torch(cures))
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
        Level.FAULT,
        f"NVIDIA's driver {driver} is too old for torch {torch.version}: CUDA {cuda} needs driver {floor} or newer",
        "torch finds no GPU: `The NVIDIA driver on your system is too old`",
        cure,
        f"or update the driver to {floor} or newer" if cure else advice,
    )


def _no_code(cures: Cures, torch: TorchInstall, gpu: Gpu, codes: tuple[str, ...]) -> Finding:
    return Finding(
        "gpu-unknown-to-torch",
        Level.FAULT,
        f"torch {torch.version} has no code for the {gpu.name} ({gpu.arch.sm}), only for {', '.join(codes)}",
        "the first kernel fails with `no kernel image is available for execution on the device`",
        *_other_torch(cures),
    )


def _no_nvrtc(cures: Cures, torch: TorchInstall, gpu: Gpu) -> Finding:
    return Finding(
        "gpu-unknown-to-nvrtc",
        Level.FAULT,
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


def nvrtc_cuda(environment: Environment, cuda: Cuda) -> Cuda:
    """The CUDA of the NVRTC that torch loads: that of its package, else torch's."""
    for name in (f"nvidia-cuda-nvrtc-cu{cuda.major}", "nvidia-cuda-nvrtc"):
        if package := environment.visible.get(name):
            major, minor, *_ = [*package.version.split("."), "", ""]
            if major.isdecimal() and minor.isdecimal() and int(major) == cuda.major:
                return Cuda(int(major), int(minor))
    return cuda
