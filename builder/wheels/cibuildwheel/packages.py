"""The exact packages of builds in containers: resolved once for an image, then read from the store."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.hashing import digest_of
from builder.images.specs import BuildImage
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.store import Store, write_atomic
from builder.wheels.toolchain.environments import Environments, build_requirements
from builder.wheels.toolchain.recorded_packages import check_needed, wheels_only
from builder.wheels.toolchain.uv import compile_requirements

#: Newest glibc 2.x that uv supports (uv 0.13: `--python-platform` in `uv pip compile --help`).
_NEWEST_GLIBC = 40

#: Requirements of torch that it uses only to compile programs at run time. Without them, the environment of a build
#: with one more Python is a third smaller (torch 2.6: 0.7 GB), and every build gets a new environment.
_RUN_TIME_ONLY = ("triton", "pytorch-triton")


@dataclass(frozen=True)
class BuildRequirements:
    """What a build's packages are resolved from."""

    #: Requirements of the build.
    requirements: list[str]
    #: URLs of PyTorch's index if the default index does not have the cell's torch.
    index: list[str]
    #: The image's platform, for uv's `--python-platform`.
    platform: str


class PackageResolver:
    """Resolves the packages of builds."""

    def __init__(self, environments: Environments, store: Store, packages: Sequence[str] = ()) -> None:
        """`packages` are exact requirements that every build gets; without them, recipes are resolved."""
        self._environments = environments
        self._store = store
        self._exact = tuple(packages)

    def torch_index(self, build: Build) -> list[str]:
        """URLs of PyTorch's index if the default index does not have the build's torch."""
        return self._environments.torch_index(build.torch, build.cuda)

    def requirements(self, build: Build, recipe: Recipe, image: BuildImage) -> BuildRequirements:
        """The requirements of a build in an image."""
        packaged = image.toolkit is None
        requirements = build_requirements(build.torch, build.cuda, recipe.build_requires, toolkit=packaged)
        platform = f"{build.platform.removeprefix('linux_')}-{_uv_platform(image)}"
        return BuildRequirements(requirements, self.torch_index(build), platform)

    def recorded(self, build: Build, recipe: Recipe, image: BuildImage) -> list[str] | None:
        """The exact packages of a build if they were resolved before, otherwise None."""
        if self._exact:
            return list(self._exact)
        record = self._record(self.requirements(build, recipe, image), image)
        return record.read_text().splitlines() if record.exists() else None

    def resolve(self, build: Build, recipe: Recipe, image: BuildImage, log: Path) -> list[str]:
        """The exact packages of a build; raises the errors of `uv_error` when they cannot be resolved."""
        wanted = self.requirements(build, recipe, image)
        arguments = _uv_arguments(recipe, image, wanted)
        if self._exact:
            options = [*arguments, *wheels_only(self._exact, recipe.build_requires)]
            check_needed(self._exact, wanted.requirements, options, index=wanted.index, store=self._store)
            return list(self._exact)
        record = self._record(wanted, image)
        with self._store.lock(f"env-{record.stem}"):
            if not record.exists():
                with tempfile.TemporaryDirectory(prefix="buildfarm-lock-") as folder:
                    locked = compile_requirements(
                        wanted.requirements,
                        ["--no-config", "--no-annotate", *arguments],
                        folder=Path(folder),
                        index=wanted.index,
                        log=log,
                        owner=self._store.owner(f"env-{record.stem}"),
                    )
                # Requirements are kept without spaces: PEP 508 allows `name@URL`.
                write_atomic(record, locked.replace(" @ ", "@").encode())
        return record.read_text().splitlines()

    def _record(self, wanted: BuildRequirements, image: BuildImage) -> Path:
        """File with the exact packages for these requirements."""
        key = digest_of([wanted.requirements, wanted.index, wanted.platform, str(image.pythons.python)])[:16]
        return self._store.root / "envs" / f"docker-{key}.txt"


def _uv_arguments(recipe: Recipe, image: BuildImage, wanted: BuildRequirements) -> list[str]:
    # uv needs an interpreter, and this machine may not have the image's Python.
    arguments = ["--python", sys.executable]
    arguments += ["--python-version", str(image.pythons.python), "--python-platform", wanted.platform]
    return arguments + [word for name in _excluded_packages(recipe) for word in ("--no-emit-package", name)]


def _excluded_packages(recipe: Recipe) -> list[str]:
    """Requirements of torch that no compile needs, without those in the recipe's `build_requires`."""
    wanted = {canonicalize_name(Requirement(text).name) for text in recipe.build_requires}
    return [name for name in _RUN_TIME_ONLY if name not in wanted]


def _uv_platform(image: BuildImage) -> str:
    """The image's glibc for uv's `--python-platform`; if unknown, the oldest glibc that current torch supports."""
    if image.distribution is None:
        return "manylinux_2_28"
    major, minor = map(int, image.distribution.glibc.split("."))
    return f"manylinux_{major}_{min(minor, _NEWEST_GLIBC)}"
