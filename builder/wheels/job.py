"""The executor protocol, the job that an executor compiles, its digest, and the torch that its wheel requires."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from builder.errors import BuildError, BuildfarmError
from builder.formats import BUILD_FORMAT, digest_of
from builder.matrix.axes import STABLE_FLOOR, AbiClass, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.records import CacheStatistics, Toolchain, recorded_settings
from builder.wheels.sources.prepare import project_folder

#: The name of the job's file in `CompileJob.shared`.
JOB_FILE = "job.json"


@dataclass(frozen=True)
class CompileJob:
    """One build, ready to compile."""

    #: build, recipe, toolchain: what is compiled, from which recipe, with what.
    build: Build
    recipe: Recipe
    toolchain: Toolchain
    work: Path  # the job's temporary folder, with the prepared, patched source tree
    log: Path  # the file to which output is appended
    jobs: int  # number of parallel compilers
    owner: str  # identifier that the job's programs and containers carry (`Store.owner`)
    #: Whether the compiler cache may reuse objects of earlier builds; `rebuild` compiles everything, and installs only
    #: wheels.
    reuse: bool = True

    @property
    def tree(self) -> Path:
        """The top of the source tree; writable."""
        return self.work / "src"

    @property
    def source(self) -> Path:
        """The folder to build in it."""
        return project_folder(self.recipe, self.tree)

    @property
    def raw(self) -> Path:
        """The folder of the raw wheel."""
        return self.work / "raw"

    def raw_wheel(self) -> Path:
        """The raw wheel; raises BuildError unless the build made one."""
        wheels = sorted(self.raw.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildError(f"the build produced {len(wheels)} wheels, expected one", stage="compile", log=self.log)
        return wheels[0]

    @property
    def shared(self) -> Path:
        """The folder that the build's programs and containers exchange files with."""
        return self.work / "shared"

    @property
    def file(self) -> Path:
        """What the build scripts read; `builder.wheels.build_scripts.job_file` describes it."""
        return self.shared / JOB_FILE

    @property
    def statistics(self) -> Path:
        """The folder BUILDFARM_STATISTICS_DIR of the compiler launchers and the compiler cache."""
        return self.shared / "statistics"

    @property
    def calls(self) -> Path:
        """The file in which `launch.sh` writes the path of each source file before the file is compiled."""
        return self.statistics / "calls"


@dataclass(frozen=True)
class Compiled:
    """What a compile made."""

    wheel: Path  # the raw wheel, in `CompileJob.work`
    #: File names of the shared libraries of torch and its CUDA packages in the environment of the build.
    libraries: frozenset[str]
    objects: CacheStatistics | None  # what the compiler cache did; None without a compiler cache


class Prepared(Protocol):
    """A build whose tools an executor found: what was found once is not looked for again."""

    @property
    def toolchain(self) -> Toolchain:
        """What compiles the build."""
        ...

    def compile(self, job: CompileJob, stage: Callable[[str], None]) -> Compiled:
        """Make the raw wheel; raises BuildError with its stage and log."""
        ...


class NotPreparedError(Exception):
    """No earlier run made what `prepare` needs, such as the environment of a build."""


class Resolver(NamedTuple):
    """How uv resolves packages of a build or of one of its cells."""

    python: str  # the interpreter that it resolves with
    options: tuple[str, ...] = ()  # of `uv pip compile`: another Python or another system


class Executor(Protocol):
    """Compiles builds, on this machine or in a container. Both make the same wheel."""

    name: str
    #: Whether builds reuse objects that another build of the same extension compiled.
    shares_objects: bool
    #: Whether builds of the same extension compile one after the other, in the same folder.
    compiles_in_turn: bool

    def problems(self, builds: Sequence[Build], recipes: Mapping[str, Recipe]) -> list[BuildfarmError]:
        """Everything that would stop these builds, found before the first one starts."""
        ...

    def prepare(self, build: Build, recipe: Recipe, *, log: Path, cached_only: bool = False) -> Prepared:
        """Find the tools of this build, and make its environment or image if it is missing.

        `cached_only`: make nothing and use no network; raises NotPreparedError if something would be made.
        """
        ...

    def record(self, build: Build, recipe: Recipe) -> Path:
        """The file of the store with the locked packages of a build that is prepared."""
        ...

    def resolver(self, build: Build, python: Python) -> Resolver:
        """How the packages of a build, or of one of its cells, are resolved for this Python."""
        ...

    def images(self, build: Build, log: Path) -> dict[str, str]:
        """The images of a build and of its cells, which exist afterwards: the id of each name that a run looks for."""
        ...


def problems_of(checks: Iterable[Callable[[], object]]) -> list[BuildfarmError]:
    """The errors that these checks raise, each sentence once."""
    found: dict[str, BuildfarmError] = {}
    for check in checks:
        try:
            check()
        except BuildfarmError as error:
            found.setdefault(str(error), error)
    return list(found.values())


def config_setting_options(recipe: Recipe) -> list[str]:
    """The options of `uv build` that pass the recipe's `config_settings`."""
    return [f"--config-setting={name}={value}" for name, values in recipe.config_settings.items() for value in values]


def torch_floor(build: Build, recipe: Recipe) -> Torch:
    """The oldest torch that the wheel claims to work with.

    For a `stable` wheel, this is the oldest release of the version table for which `abi` of the recipe says `stable`.
    """
    if build.abi is not AbiClass.STABLE:
        return build.torch
    since = (torch for torch in Compat.load().torches if torch >= STABLE_FLOOR)
    rules = ((torch, recipe.rule_of(torch)) for torch in since)
    return next((torch for torch, rule in rules if rule and rule.abi is AbiClass.STABLE), STABLE_FLOOR)


def required_torch(build: Build, recipe: Recipe, floor: Torch | None = None) -> str:
    """The torch releases that the wheel works with, as a requirement for METADATA; empty if it keeps the source's own.

    A wheel of the class `cpython` or `abi3` belongs to one torch series. A `stable` wheel works from the release of its
    shims on, and not before `floor`. PyTorch keeps the shims for two years (libtorch_stable_abi.md), so there is no
    known upper limit.
    """
    if recipe.requires_torch == "source":
        return ""
    if build.abi is AbiClass.STABLE:
        return f"torch>={max(torch_floor(build, recipe), floor or STABLE_FLOOR).series}"
    return f"torch=={build.torch.series}.*"


def build_digest(build: Build, recipe: Recipe, toolchain: Toolchain, source: str) -> str:
    """The build's name in the store: a hash of every input that can change the wheel.

    The cells that the build serves are not an input: a later plan may add cells to the same wheel.
    """
    settings = recorded_settings(recipe)
    settings.pop("requires_torch", None)  # `required_torch` is what it results in
    return digest_of(
        {
            "name": str(build),
            "archs": [str(arch) for arch in build.archs],
            "local_version": build.local_version,
            "source": source,
            **settings,
            "torch_window": required_torch(build, recipe),
            "toolchain": [toolchain.executor, str(toolchain.python), toolchain.parts()],
            "format": BUILD_FORMAT,
        }
    )
