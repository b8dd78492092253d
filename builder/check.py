"""Every check of a wheel: its name, and what a passed one shows."""

from enum import StrEnum
from typing import Self

from builder.gate.check_table import MEANINGS


class Check(StrEnum):
    """The name of a check. [Checks](checks.md) lists all names."""

    # The members have the order in which reports show them.
    meaning: str
    """What a passed check shows, one sentence."""

    def __new__(cls, value: str, meaning: str = "") -> Self:
        """A member; a check of the op gate takes its meaning from the gate's table."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning or MEANINGS[value]
        return member

    # Static checks, which read the wheel file.
    PAYLOAD = "payload", "The wheel contains a shared library, and GPU code if it is a CUDA extension."
    TAGS = (
        "tags",
        "The file name and the file WHEEL have tags for the same systems. The libraries need no glibc newer than the"
        " manylinux tag.",
    )
    MODULES = (
        "modules",
        "Every Python that the tags name can import the extension modules, by the names of their files and functions.",
    )
    METADATA = (
        "metadata",
        "Name, version, torch requirement and Python requirement agree with the file name and the recipe.",
    )
    RECORD = "record", "pip and uv can read the archive, and RECORD lists every file of the wheel with its hash."
    GRAFTED = "grafted", "The wheel bundles no library of torch, CUDA or the NVIDIA driver."
    CONTENTS = (
        "contents",
        "No file with the name of a library is something else, such as a pointer of Git LFS. It remarks on stray"
        " top-level packages, equal libraries, code that runs when Python starts, and CUDA sources without their"
        " headers.",
    )
    ABI3 = "abi3", "The libraries of a wheel tagged abi3 or abi3t use only the limited API of the tagged Python."
    STABLE = (
        "stable-abi",
        "The libraries of a stable-ABI wheel use only C functions (shims) that the oldest torch of the wheel has.",
    )
    LINKAGE = "linkage", "Every undefined symbol of the wheel's libraries is defined by a library in the cell."
    DEVICE_CODE = (
        "device-code",
        "Each library with GPU code contains SASS for every architecture of the build, and PTX for each `+PTX`.",
    )
    SIZE = "size", "The wheel file is not larger than `max_size` of the recipe, or `verify --max-size`."
    GPUS = (
        "gpus",
        "Every GPU that `verify --gpu` names runs a library with GPU code, with the driver of `--driver`. A remark says"
        " which GPUs a library is for, if it is not for all.",
    )
    LOADER = (
        "loader",
        "The dynamic loader accepts the libraries: no executable stack, no text relocations, no RPATH to folders of"
        " others, one CUDA runtime. It finds the libraries of the wheel that Python modules need.",
    )
    WINDOW = "window", "The wheel links with every torch release that its METADATA allows."
    CURES = (
        "cures",
        "The GPU code of a source is the same with the cures of a build as without; CPU functions may differ.",
    )
    # In the cell's environment.
    IMPORT = "import", "The wheel can be installed and imported in the cell's environment."
    # The op gate's, in the cell's environment.
    OPS = "ops"
    LOADED = "loaded"
    DISPATCH = "dispatch"
    IMPORT_ORDER = "import-order"
    VALUES = "values"
    GRADIENTS = "gradients"
    LAYOUTS = "layouts"
    EDGES = "edges"
    REPEAT = "repeat"
    MEMORY = "memory"
    OPCHECK = "opcheck"
    FAKE = "fake"
    DEVICES = "devices"
    EXPORT = "export"
    COMPILE = "compile"
    # Checks of the op gate on a GPU.
    GPU_VALUES = "gpu-values"
    GPU_STREAM = "gpu-stream"
    GPU_GRAPH = "gpu-graph"
    GPU_DEVICE = "gpu-device"
    GPU_SANITIZER = "gpu-sanitizer"

    @property
    def on_gpu(self) -> bool:
        """Whether the check needs a GPU."""
        return self.value.startswith("gpu-")


#: The checks of the file that depend on nothing but the file; `build`, `publish` and `verify` make them.
OF_ANY_WHEEL = (Check.RECORD, Check.LOADER)
