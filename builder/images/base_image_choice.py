"""Chooses what images are made of: from a build or a cell to a base image, a compiler and a Python.

Pure; the facts about toolkits, distributions and manylinux images come from compat.yaml.
"""

import fnmatch
from collections.abc import Mapping, Sequence

from builder.errors import Code, UsageError
from builder.images.specs import NVIDIA_REPOSITORY, TOOLS_PYTHON, BuildImage, PythonSource, RuntimeImage
from builder.matrix.axes import Cell, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.compat_table import Distribution
from builder.matrix.config import ImageRule, Matrix
from builder.matrix.plan import Build


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

    def rule_name(self, build: Build) -> str:
        """The rule of `images:` that names a build's images, for error messages; empty without a rule."""
        rule = self._rule([str(cell) for cell in build.serves])
        return f"images, cells {rule.cells}" if rule else ""

    def runtime_image(self, cell: Cell) -> RuntimeImage:
        """The image to run a cell in. Raises UsageError when no base image or no Python is known for the cell."""
        rule = self._rule([str(cell)])
        if rule:
            base = rule.runtime or rule.image
        else:  # NVIDIA's small image with the newest glibc: wheels built with any older glibc can be installed
            tags = self._compat.toolkit(cell.cuda).images.systems()
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
        systems = self._compat.toolkit(cuda).images.systems()
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
