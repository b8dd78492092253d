"""The axes of a matrix (torch, CUDA, Python, GPU architecture, platform), the cell they span, and the ABI classes."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from builder.errors import Code, UsageError

#: A number of a version. Python refuses to convert more than 4,300 digits.
_N = r"\d{1,4}"
#: Characters of a text that a message repeats.
_SHOWN = 40


def shown(text: str) -> str:
    """The text as a message repeats it: at most 40 characters of it."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _unreadable(kind: str, text: str, example: str) -> UsageError:
    several = ", and name several by the option again" if "," in text else ""
    return UsageError(f"{shown(text)!r} is not a {kind}; write it like {example}{several}", Code.VALUE_INVALID)


@dataclass(frozen=True, order=True)
class Torch:
    """A PyTorch release with its patch number: `2.11.0`. Its series is `2.11`."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `2.11.0`; raises UsageError otherwise. `Compat.releases` reads a series such as `2.11`."""
        if not (m := re.fullmatch(rf"({_N})\.({_N})\.({_N})", text)):
            raise _unreadable("torch release", text, "2.11.0")
        return cls(*map(int, m.groups()))

    @property
    def series(self) -> str:
        """Major and minor, the unit of torch's C++ ABI: `2.11`."""
        return f"{self.major}.{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, order=True)
class Cuda:
    """A CUDA version, major and minor: `13.0`. torch names its wheels of that CUDA `cu130`."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `13.0` or `cu130`; raises UsageError otherwise."""
        if m := re.fullmatch(rf"({_N})\.({_N})", text) or re.fullmatch(rf"cu({_N})(\d)", text):
            return cls(int(m[1]), int(m[2]))
        raise _unreadable("CUDA version", text, "13.0 or cu130")

    @classmethod
    def of_toolkit(cls, version: str) -> Self:
        """The CUDA of a version with a patch number: 12.4 for `12.4.131`; raises UsageError otherwise."""
        return cls.parse(".".join(version.split(".")[:2]))

    @property
    def variant(self) -> str:
        """The name torch gives its wheels of this CUDA: `cu130`."""
        return f"cu{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, order=True)
class Python:
    """A CPython version: `3.12`, free-threaded `3.13t`; as a wheel tag `cp312`, `cp313t`."""

    major: int
    minor: int
    free_threaded: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `3.12`, `3.13t`, `cp312` or `cp313t`; raises UsageError otherwise."""
        if m := re.fullmatch(rf"({_N})\.({_N})(t?)", text) or re.fullmatch(rf"cp(\d)({_N})(t?)", text):
            return cls(int(m[1]), int(m[2]), bool(m[3]))
        raise _unreadable("Python version", text, "3.12 or cp312")

    @property
    def series(self) -> str:
        """Major and minor, without the `t` of a free-threaded one: `3.13`."""
        return f"{self.major}.{self.minor}"

    @property
    def tag(self) -> str:
        """The interpreter's wheel tag: `cp312`."""
        return f"cp{self}".replace(".", "")

    def __str__(self) -> str:
        return f"{self.series}{'t' if self.free_threaded else ''}"


#: The first Python with the ABI abi3t (PEP 803), and the first that looks for `_C.abi3t.so`,
#: `_C.abi3-x86_64-linux-gnu.so` and `_C.abi3t-x86_64-linux-gnu.so` (`EXTENSION_SUFFIXES` of CPython 3.14 and 3.15.2).
ABI3T_SINCE = Python(3, 15)


@dataclass(frozen=True, order=True)
class Arch:
    """A GPU architecture as TORCH_CUDA_ARCH_LIST writes it: `9.0`, `9.0a`, `12.0+PTX`."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `9.0`, `9.0a`, `12.0f` or `9.0+PTX`; raises UsageError otherwise."""
        if m := re.fullmatch(rf"({_N})\.(\d)([af]?)(\+PTX)?", text):
            return cls(int(m[1]), int(m[2]), m[3], bool(m[4]))
        raise _unreadable("GPU architecture", text, "9.0 or 9.0+PTX")

    @classmethod
    def of_code(cls, code: str) -> Self | None:
        """The architecture of GPU code, by its name: 9.0a for `sm_90a` and `compute_90a`; None for another text."""
        m = re.fullmatch(rf"(?:sm|compute)_({_N})(\d)([af]?)", code)
        return cls(int(m[1]), int(m[2]), m[3]) if m else None

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of its GPUs: (9, 0)."""
        return self.major, self.minor

    @property
    def number(self) -> int:
        """The number nvcc uses: 90 for `9.0`."""
        return self.major * 10 + self.minor

    @property
    def sm(self) -> str:
        """The name of its machine code (SASS): `sm_90a`."""
        return f"sm_{self.number}{self.suffix}"

    @property
    def codes(self) -> tuple[str, ...]:
        """The names of the code that is compiled for it: `sm_90`, and `compute_90` with PTX."""
        return (self.sm, f"compute_{self.number}{self.suffix}") if self.ptx else (self.sm,)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}{'+PTX' if self.ptx else ''}"


@dataclass(frozen=True)
class Gpu:
    """A GPU: its name for people, and its compute capability."""

    name: str
    arch: Arch

    def __str__(self) -> str:
        return f"{self.name} ({self.arch})" if self.name != str(self.arch) else self.name


class Platform(StrEnum):
    """Operating system and processor of a cell, as wheel tags spell it."""

    LINUX_X86_64 = "linux_x86_64"
    LINUX_AARCH64 = "linux_aarch64"

    @property
    def machine(self) -> str:
        """The processor: `x86_64`."""
        return self.removeprefix("linux_")


class AbiClass(StrEnum):
    """What a binary depends on; this decides how many cells one build serves.

    `cpython`: torch series, CUDA and Python. `abi3`: torch series and CUDA. `stable`: only the CUDA major version; the
    code uses the LibTorch stable ABI, which needs torch 2.10 or newer.
    """

    CPYTHON = "cpython"
    ABI3 = "abi3"
    STABLE = "stable"


#: The oldest torch that a stable binary is built for: the first whose headers enforce TORCH_TARGET_VERSION
#: (libtorch_stable_abi.md of pytorch/pytorch).
STABLE_FLOOR = Torch(2, 10, 0)


@dataclass(frozen=True, order=True)
class Cell:
    """An environment that wheels are for: torch, CUDA, Python and platform. Its name is `torch2.11.0-cu130-cp312`."""

    torch: Torch
    cuda: Cuda
    python: Python
    platform: Platform = Platform.LINUX_X86_64

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cell's name; raises UsageError otherwise."""
        torch, *others = text.split("-")
        if len(others) not in (2, 3) or not torch.startswith("torch"):
            raise _unreadable("cell", text, "torch2.11.0-cu130-cp312")
        cuda, python, platform = [*others, Platform.LINUX_X86_64][:3]
        if platform not in list(Platform):
            raise UsageError(
                f"{platform!r} is not a platform; the platforms are {', '.join(Platform)}", Code.VALUE_INVALID
            )
        return cls(Torch.parse(torch.removeprefix("torch")), Cuda.parse(cuda), Python.parse(python), Platform(platform))

    def __str__(self) -> str:
        name = f"torch{self.torch}-{self.cuda.variant}-{self.python.tag}"
        return name if self.platform is Platform.LINUX_X86_64 else f"{name}-{self.platform}"
