"""What a build is made of: the executor protocol, the job given to it, and the digest that names the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from builder.errors import FarmError
from builder.matrix.axes import STABLE_FLOOR, AbiClass, Python, Torch
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.store import digest_of
from builder.wheels.objects import Objects

#: Modules of this room that only look at wheels or at the machine; all others decide a wheel's bytes.
_LOOKERS = frozenset({"facts", "resources"})


@dataclass(frozen=True)
class Toolchain:
    """The exact identity of what compiles; part of the build's digest.

    Attributes:
        executor: `local` or `docker`.
        python: the Python the build runs under.
        parts: sorted pairs such as ("c++", "g++ 12.2.0"), ("nvcc", "13.0.88").

    """

    executor: str
    python: Python
    parts: tuple[tuple[str, str], ...]

    def part(self, name: str) -> str:
        """One part's value, or empty."""
        return dict(self.parts).get(name, "")


@dataclass(frozen=True)
class Job:
    """One build, ready to compile.

    Attributes:
        build, recipe, toolchain: what, from what, with what.
        source: the prepared, patched tree; may be written to.
        work: scratch folder of this job.
        log: file the output is appended to.
        jobs: how many compilers may run at once.
        digest: the name of the result in the store.
        mark: what the programs of this job carry in their environment (`Store.mark`).
        reuse: whether objects of earlier builds may be taken; a build that verifies another compiles all of its own.

    """

    build: Build
    recipe: Recipe
    toolchain: Toolchain
    source: Path
    work: Path
    log: Path
    jobs: int
    digest: str
    mark: str
    reuse: bool = True


class Executor(Protocol):
    """Something that compiles: this machine, or a container on it. Both make the same wheel."""

    name: str
    #: Whether builds find objects that another build of the same extension compiled.
    shares_objects: bool

    def problems(self, builds: Sequence[Build], recipes: Mapping[str, Recipe]) -> list[FarmError]:
        """Everything that would stop these builds, found before any of them starts."""
        ...

    def known_toolchain(self, build: Build, recipe: Recipe) -> Toolchain | None:
        """What would compile this build if that is known from an earlier run; makes nothing and asks no network."""
        ...

    def toolchain(self, build: Build, recipe: Recipe, *, log: Path) -> Toolchain:
        """What compiles this build; makes the environment or image when it is not there."""
        ...

    def compile(self, job: Job, stage: Callable[[str], None]) -> Path:
        """The raw wheel, in `job.work`; raises BuildError with its stage and log."""
        ...

    def objects(self, job: Job) -> Objects | None:
        """What the object cache did for a build that was compiled; None where there is no cache."""
        ...

    def libraries(self, job: Job) -> frozenset[str]:
        """File names of the shared libraries that torch and its CUDA packages bring in this build's environment."""
        ...


def build_digest(build: Build, recipe: Recipe, toolchain: Toolchain, source: str) -> str:
    """The build's name in the store: a hash over every input that can change the wheel.

    The cells it serves are not among them: the same binary may serve more cells tomorrow.
    """
    return digest_of(
        {
            "name": str(build),
            "archs": [str(arch) for arch in build.archs],
            "local_version": build.local_version,
            "source": source,
            "env": recipe.env,
            "assume_cuda": recipe.assume_cuda,
            "cibuildwheel_skip": recipe.cibuildwheel_skip,
            "build_requires": recipe.build_requires,
            "requires": recipe.requires,
            "torch_window": torch_window(build),
            "toolchain": [toolchain.executor, str(toolchain.python), toolchain.parts],
            "farm": code_version(),
        }
    )


def torch_floor(build: Build) -> Torch:
    """The oldest torch the wheel is said to work with."""
    return STABLE_FLOOR if build.abi is AbiClass.STABLE else build.torch


def torch_window(build: Build) -> str:
    """The torch releases the wheel may be installed beside, as a requirement for its METADATA.

    A classic binary belongs to one series. A stable one starts at the release its shims come from; PyTorch promises
    the shims for two years (libtorch_stable_abi.md), so there is no upper end to claim or to deny.
    """
    if build.abi is AbiClass.STABLE:
        return f"torch>={STABLE_FLOOR.series}"
    return f"torch=={build.torch.series}.*"


@cache
def code_version() -> str:
    """The farm's own build code, by content: editing it rebuilds, so that no wheel is older than the code beside it."""
    files = sorted(path for path in Path(__file__).parent.rglob("*.py") if path.stem not in _LOOKERS)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
