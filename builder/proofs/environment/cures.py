"""What is wrong in an environment, why, and the commands that mend it; compat.yaml decides which versions they name."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from builder.matrix.axes import Arch, Cuda, Gpu, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.proofs.cells.driver import driver_runs
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage, TorchInstall
from builder.wheelfile.compatibility import codes_for
from builder.wheels.toolchain.uv import uv_command


class Severity(StrEnum):
    """A fault breaks programs and makes the exit code 1; a note does not."""

    FAULT = "fault"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One finding."""

    code: str  # identifier for programs, such as `companion-of-another-torch`
    level: Severity  # fault or note
    what: str  # what is wrong, one sentence
    why: str  # what users see, and the cause
    cure: tuple[str, ...] = ()  # commands that mend it, to run in this order; empty if no command can
    advice: str = ""  # what else a person can do; may be empty


def fault(code: str, what: str, why: str, cure: tuple[str, ...] = (), advice: str = "") -> Finding:
    """A finding about what breaks programs."""
    return Finding(code, Severity.FAULT, what, why, cure, advice)


def note(code: str, what: str, why: str, cure: tuple[str, ...] = (), advice: str = "") -> Finding:
    """A finding about what breaks nothing."""
    return Finding(code, Severity.NOTE, what, why, cure, advice)


@dataclass(frozen=True)
class Cures:
    """Makes commands for one environment. They call uv, also where the environment has pip: buildfarm brings it."""

    environment: InstalledEnvironment  # the environment
    compat: Compat  # the facts about torch and CUDA
    torch_index: str = TORCH_INDEX  # URL of PyTorch's index, with `{variant}`

    def _command(self, verb: str, *words: str) -> str:
        python = str(self.environment.interpreter.executable)
        return f"{uv_command()} {shlex.join(['pip', verb, '--python', python, *words])}"

    def install(self, *requirements: str, index: str = "") -> str:
        """Install or replace packages; `index` is asked before the default index."""
        return self._command("install", *(["--index", index] if index else []), *requirements)

    def remove(self, *names: str) -> str:
        """Remove packages."""
        return self._command("uninstall", *names)

    def restore(self, packages: Sequence[InstalledPackage], index: str = "") -> str:
        """Install the files of packages again, without their requirements."""
        pins = [
            f"{package.name} @ {package.source}" if package.source else f"{package.name}=={package.version}"
            for package in packages
        ]
        again = [word for package in packages for word in ("--reinstall-package", package.name)]
        return self.install("--no-deps", *again, *(["--index", index] if index else []), *pins)

    @property
    def archs(self) -> list[Arch]:
        """The architectures of the GPUs that the compiler of torch's CUDA knows."""
        torch = self.environment.torch
        gpus = sorted({gpu.arch for gpu in self.environment.machine.gpus})
        if torch is None or torch.cuda not in self.compat.cudas or torch.cuda is None:
            return gpus
        return [gpu for gpu in gpus if not self.compat.why_not_arch(torch.cuda, gpu)]

    def compile(self, package: InstalledPackage) -> tuple[str, ...]:
        """Compile a package from its source for the torch and the GPUs of the environment."""
        gpus = ";".join(map(str, self.archs))
        archs = f"TORCH_CUDA_ARCH_LIST={shlex.quote(gpus)} " if gpus else ""
        source = f"{package.name} @ {package.source}" if package.source else f"{package.name}=={package.public}"
        tools = [name for name in ("setuptools", "wheel", "ninja") if name not in self.environment.visible]
        words = ["--no-deps", "--no-binary", package.name, "--no-build-isolation", "--reinstall-package", package.name]
        first = (self.install(*tools),) if tools else ()
        return (*first, f"{archs}{self.install(*words, source)}")

    def index_of(self, torch: TorchInstall) -> str:
        """The index that has an installed torch and its companions; empty for the default index."""
        local = torch.package.local if torch.package else ""
        if re.fullmatch(r"cu\d+|cpu", local):
            return self.variant_index(local)
        release, cuda = torch.release, torch.cuda
        if release not in self.compat.torches or release is None or cuda is None:
            return ""
        return "" if self.compat.is_default_variant(release, cuda) else self.variant_index(cuda.variant)

    def variant_index(self, variant: str) -> str:
        """PyTorch's index of a variant, such as `cu128` or `cpu`."""
        return self.torch_index.replace("{variant}", variant)

    def companion(self, name: str, torch: Torch, local: str) -> str:
        """The requirement of a companion of this torch, or empty; one of several torches is not pinned to `local`."""
        versions = self.compat.companions[name]
        version = versions.get(torch, "")
        if not version:
            return ""
        shared = sum(other == version for other in versions.values()) > 1
        return f"{name}=={version}+{local}" if local and not shared else f"{name}=={version}"

    def fitting_torch(self) -> tuple[str, ...]:
        """Install `nearest_torch`, and the companions that belong to it; empty without one.

        `torch==2.11.0` admits every CUDA variant, also the installed one. Therefore the command names the variant, and
        PyTorch's index, which has all variants.
        """
        if not (fit := self.nearest_torch()):
            return ()
        torch, variant = fit[0], fit[1].variant
        present = [name for name in self.compat.companions if name in self.environment.visible]
        pins = filter(None, (self.companion(name, torch, variant) for name in present))
        return (self.install(f"torch=={torch}+{variant}", *pins, index=self.variant_index(variant)),)

    def nearest_torch(self) -> tuple[Torch, Cuda] | None:
        """The torch nearest to the installed one that this Python, driver and these GPUs can use, and its CUDA.

        The same release with another CUDA comes first, then the next newer release, then older ones.
        """
        environment, compat, installed = self.environment, self.compat, self.environment.torch
        now, cuda = (installed.release, installed.cuda) if installed else (None, None)

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

        usable = (
            (torch, cuda)
            for torch in compat.torches
            for cuda in compat.torch(torch).variants
            if not compat.why_not(torch, cuda, environment.interpreter.python, environment.platform)
            and driver_runs(environment.machine.driver, cuda, compat)
            and all(self._supports(torch, cuda, gpu) for gpu in environment.machine.gpus)
        )
        return min(usable, key=distance, default=None)

    def _supports(self, torch: Torch, cuda: Cuda, gpu: Gpu) -> bool:
        """Whether a GPU runs the code of a torch's wheel, and the CUDA compiles for it at run time."""
        codes = [arch.sm for arch in self.compat.official_archs(torch, cuda, self.environment.platform)]
        return bool(codes_for(codes, gpu.arch)) and self.nvrtc_knows(cuda, gpu.arch)

    def nvrtc_knows(self, cuda: Cuda, gpu: Arch) -> bool:
        """Whether the runtime compiler (NVRTC) of a CUDA compiles for a GPU; an unknown CUDA counts as able."""
        return all(gpu in toolkit.archs for toolkit in self.compat.toolkits if toolkit.cuda == cuda)
