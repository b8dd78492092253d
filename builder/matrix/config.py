"""What matrix.yaml and extension.yaml declare, as frozen dataclasses; `builder.matrix.load` reads the files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

from builder.gate.outcome import Accept
from builder.matrix.axes import AbiClass, Arch, Cuda, Platform, Python, Torch

#: The matrix that commands read by default: that of the current folder.
MATRIX = Path("matrix.yaml")
RECIPE = "extension.yaml"
CASES = "cases.py"

#: Memory, in bytes, that one compiler is expected to need if the recipe does not say.
MEMORY_PER_JOB = 2 * 2**30
#: Time limit of one check with one case without `seconds_per_case` in the recipe.
SECONDS_PER_CASE = 60

#: PyTorch's own index of wheels; `{variant}` is replaced by the CUDA variant, such as cu130.
TORCH_INDEX = "https://download.pytorch.org/whl/{variant}"


#: What `name` and `version` in a recipe may hold in braces: 13.0 is 130, its major version 13, and torch 2.11 is 211.
PLACEHOLDERS = ("cuda", "cuda_major", "torch")


def _numbers(torch: Torch, cuda: Cuda) -> dict[str, str]:
    values = (cuda.variant.removeprefix("cu"), str(cuda.major), f"{torch.major}{torch.minor}")
    return dict(zip(PLACEHOLDERS, values, strict=True))


def name_pattern(name: str, torch: Torch, cuda: Cuda) -> str:
    """A distribution name with PLACEHOLDERS in place of the numbers of a torch and a CUDA that it contains."""
    numbers = _numbers(torch, cuda)
    name = re.sub(rf"(?<!\d){numbers['cuda']}(?!\d)", "{cuda}", name)
    name = re.sub(rf"(?<=cu){numbers['cuda_major']}(?!\d)|(?<=cuda){numbers['cuda_major']}(?!\d)", "{cuda_major}", name)
    return re.sub(rf"(torch|pt){numbers['torch']}(?!\d)", r"\1{torch}", name)


def version_pattern(version: Version, torch: Torch, cuda: Cuda) -> str:
    """The public part of a version with PLACEHOLDERS in place of the numbers of a torch and a CUDA that it contains."""
    numbers, text = _numbers(torch, cuda), version.public
    for name in ("cuda", "torch"):  # the number of `cuda_major` is that of many versions
        text = re.sub(rf"(?<!\d){numbers[name]}(?!\d)", f"{{{name}}}", text)
    return text


@dataclass(frozen=True)
class AbiRule:
    """The ABI class of the torch releases that a PEP 440 specifier such as `>=2.10` contains; empty: every release."""

    abi: AbiClass
    specifier: str = ""
    #: Whether the source also compiles for Python's stable ABI abi3t.
    abi3t: bool = False


@dataclass(frozen=True)
class PathSource:
    """A source tree on this machine: an absolute path inside the recipe's folder."""

    path: Path


@dataclass(frozen=True)
class SdistSource:
    """A source distribution on the package index, by exact version and sha256 (hex)."""

    project: str
    version: str
    sha256: str


@dataclass(frozen=True)
class GitSource:
    """A git repository at a full commit hash; `subdirectory` is the source's folder inside it, or empty."""

    url: str
    revision: str
    subdirectory: str = ""


@dataclass(frozen=True)
class WheelSource:
    """An official wheel on the package index. buildfarm builds nothing for it and only proves it."""

    project: str
    version: str


Source = PathSource | SdistSource | GitSource | WheelSource


@dataclass(frozen=True)
class PatchRule:
    """The builds that a patch is for, as version specifiers; an empty one means every version."""

    torch: str = ""
    cuda: str = ""

    def suits(self, torch: Torch, cuda: Cuda) -> bool:
        """Whether a build for this torch and CUDA needs the patch."""
        versions = ((self.torch, str(torch)), (self.cuda, str(cuda)))
        return all(SpecifierSet(text, prereleases=True).contains(version) for text, version in versions)


@dataclass(frozen=True)
class Recipe:
    """One extension, as its extension.yaml declares it. `RecipeModel` says what each key means.

    Here, paths are absolute, a key that is not given is empty, and `name` and `version` hold no PLACEHOLDERS: `version`
    has 0 in place of each. `pattern` and `version_pattern` are the keys with them, or empty if they have none.
    """

    name: str
    version: str
    #: The folder that holds extension.yaml.
    folder: Path
    source: Source
    summary: str = ""
    patches: tuple[Path, ...] = ()
    #: For patches that only some builds need, by their path as extension.yaml has it; see `of`.
    patch_rules: dict[str, PatchRule] = field(default_factory=dict)
    abi: tuple[AbiRule, ...] = (AbiRule(AbiClass.CPYTHON),)
    cuda: str = "required"
    env: dict[str, str] = field(default_factory=dict)
    config_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    build_requires: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    wheel_exclude: tuple[str, ...] = ()
    requires_torch: str = "window"
    assume_cuda: bool = False
    override_architectures: bool = False
    archs: tuple[Arch, ...] = ()
    python: str = ""
    imports: tuple[str, ...] = ()
    needs_first: tuple[str, ...] = ()
    accepts: tuple[Accept, ...] = ()
    companions: tuple[str, ...] = ()
    libraries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seconds_per_case: int = SECONDS_PER_CASE
    memory_per_job: int = MEMORY_PER_JOB
    max_size: int = 0
    pattern: str = ""
    version_pattern: str = ""

    def of(self, torch: Torch, cuda: Cuda) -> Recipe:
        """The recipe for a build, with the patches that this torch and CUDA need."""
        if not self.patch_rules:
            return self
        rules = {self.folder / name: rule for name, rule in self.patch_rules.items()}
        needed = (path for path in self.patches if path not in rules or rules[path].suits(torch, cuda))
        return replace(self, patches=tuple(needed), patch_rules={})

    def wheel_name(self, torch: Torch, cuda: Cuda) -> str:
        """The distribution name of the wheel for this torch and CUDA."""
        return (self.pattern or self.name).format_map(_numbers(torch, cuda))

    def wheel_version(self, torch: Torch, cuda: Cuda) -> str:
        """The version of the wheel for this torch and CUDA, without a local part."""
        return self.stated_version.format_map(_numbers(torch, cuda))

    @property
    def stated_version(self) -> str:
        """The version as extension.yaml has it, with PLACEHOLDERS."""
        return self.version_pattern or self.version

    def is_version(self, version: Version) -> bool:
        """Whether wheels of this version may be of this recipe; the local part does not count, and 1.0 is 1.0.0."""
        found = Version(version.public)
        if not self.version_pattern:
            return found == Version(Version(self.version).public)
        number = "9876543210"  # in no version
        written = canonicalize_version(re.sub(r"\{\w+\}", number, self.version_pattern))
        return re.fullmatch(re.escape(written).replace(number, r"\d+"), canonicalize_version(found)) is not None

    def makes(self, project: str) -> bool:
        """Whether wheels of this distribution name may be of this extension, compared as pip compares names."""
        name = canonicalize_name(project)
        if not self.pattern:
            return name == canonicalize_name(self.name)
        parts = [re.escape(re.sub(r"[-_.]+", "-", part).lower()) for part in re.split(r"\{\w+\}", self.pattern)]
        return re.fullmatch(r"\d+".join(parts), name) is not None

    def rule_of(self, torch: Torch) -> AbiRule | None:
        """The first rule of `abi` that contains a torch release, or None."""
        takes = ((SpecifierSet(rule.specifier, prereleases=True), rule) for rule in self.abi)
        return next((rule for specifiers, rule in takes if specifiers.contains(str(torch))), None)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules to import, in order: those of `needs_first`, then those of `imports`."""
        return tuple(dict.fromkeys([*self.needs_first, *self.imports]))

    @property
    def cases(self) -> Path | None:
        """The cases.py that the op gate runs, which may import from `references/` next to it; None without one."""
        path = self.folder / CASES
        return path if path.is_file() else None


@dataclass(frozen=True)
class ImageRule:
    """An entry of `images:`: base images to use for some cells in place of buildfarm's choice. Keys: `ImageModel`."""

    cells: str
    image: str
    pythons: str = ""
    runtime: str = ""
    toolkit: Cuda | None = None


@dataclass(frozen=True)
class Exclude:
    """Cells that get no wheel: those that match every axis given. Keys: `ExcludeModel`."""

    reason: str
    torch: str = ""
    cuda: Cuda | None = None
    python: Python | None = None
    extension: str = ""


@dataclass(frozen=True)
class Matrix:
    """The axes, the extensions and the settings of matrix.yaml. `MatrixModel` says what each key means.

    Axes are sorted, and `extensions` are absolute paths of folders.
    """

    path: Path
    torch: tuple[Torch, ...]
    cuda: tuple[Cuda, ...]
    python: tuple[Python, ...]
    archs: tuple[Arch, ...] = ()
    platforms: tuple[Platform, ...] = (Platform.LINUX_X86_64,)
    extensions: tuple[Path, ...] = ()
    exclude: tuple[Exclude, ...] = ()
    images: tuple[ImageRule, ...] = ()
    torch_index: str = TORCH_INDEX


@dataclass(frozen=True)
class Selection:
    """What the command line selects, as text; an empty axis means all values in the matrix."""

    torch: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
