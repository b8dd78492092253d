"""The keys of matrix.yaml and extension.yaml as pydantic models: type, default and description of each.

The reference pages come from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from builder.matrix import fields
from builder.matrix.axes import AbiClass, Platform
from builder.matrix.config import MEMORY_PER_JOB, SECONDS_PER_CASE, TORCH_INDEX
from builder.proof import Check


class ExcludeModel(fields.StrictModel):
    """Cells that get no wheel: those that match every key given here. At least one key besides `reason` is required."""

    reason: str = Field(min_length=1)
    """Why these cells get no wheel, one sentence. The plan shows it."""
    torch: fields.TorchText | None = None
    """A torch series or release. Without this key, every torch."""
    cuda: fields.CudaVersion | None = None
    """A CUDA version. Without this key, every CUDA version."""
    python: fields.PythonVersion | None = None
    """A Python version. Without this key, every Python version."""
    extension: str | None = None
    """The `name` of an extension. Without this key, every extension."""

    @model_validator(mode="after")
    def _require_axis(self) -> ExcludeModel:
        if not any((self.torch, self.cuda, self.python, self.extension)):
            raise ValueError("excludes every cell; name at least one of torch, cuda, python, extension")
        return self


class ImageModel(fields.StrictModel):
    """Base images for some cells, in place of the images that buildfarm chooses."""

    cells: str
    """Pattern of cell names; `*` matches any text."""
    image: fields.ImageName
    """The base image for builds, with its tag or digest."""
    pythons: fields.ImageName | None = None
    """The image from which buildfarm copies /opt/python; it may be the same as `image`. Without this key, pypa's
    manylinux image."""
    runtime: fields.ImageName | None = None
    """The base image of the runtime images. A check in a container runs in a runtime image. The base image needs no
    CUDA toolkit. Without this key, `image`."""
    toolkit: fields.CudaVersion | None = None
    """The CUDA version of the toolkit in the image. Needed if its minor version differs from that of the cells. The
    major versions must be equal."""


class MatrixModel(fields.StrictModel):
    """matrix.yaml: the versions to build for, the extensions to build, and settings for all of them."""

    torch: fields.TorchReleases = Field(min_length=1)
    """PyTorch releases. A series such as 2.11 means its newest patch release. In place of the list, a version specifier
    such as ">=2.10": the newest release of each series that buildfarm or facts.yaml knows. `buildfarm facts` adds newer
    ones to facts.yaml."""
    cuda: fields.CudaVersions = Field(min_length=1)
    """CUDA versions that the torch wheels are built for (`torch.version.cuda`, not the driver's version). Or a
    specifier of known versions: "13.*"."""
    python: fields.PythonVersions = Field(min_length=1)
    """CPython versions. The suffix `t` means a free-threaded Python. Or a specifier of known versions: ">=3.11";
    free-threaded ones must be listed."""
    archs: tuple[fields.ArchName, ...] = ()
    """GPU architectures to compile for. Without this key, each build takes the architectures of torch's own wheel, so
    that the extension runs on every GPU that torch runs on."""
    platforms: list[Platform] = Field(default=[Platform.LINUX_X86_64], min_length=1)
    """Operating system and processor that wheels run on: linux_x86_64 or linux_aarch64."""
    extensions: tuple[str, ...]
    """Folders with an extension.yaml, relative to this file."""
    exclude: tuple[ExcludeModel, ...] = ()
    """Cells that get no wheel, each with a reason."""
    images: tuple[ImageModel, ...] = ()
    """Base images for some cells. The first entry whose pattern matches applies. For other cells, buildfarm uses
    NVIDIA's image with the CUDA toolkit."""
    torch_index: str = TORCH_INDEX
    """URL of PyTorch's wheel index, for CUDA variants of torch that the package index does not serve. `{variant}` is
    replaced by the variant, such as cu130."""


class AbiModel(fields.StrictModel):
    """The ABI class of some torch releases."""

    abi: AbiClass = Field(alias="class")
    """What the binary depends on. `stable` needs torch 2.10 or newer."""
    torch: fields.SpecifierText = ""
    """Version specifier of torch releases. Without this key, every release."""
    abi3t: bool = False
    """For `abi3` and `stable`: the source also compiles for Python's stable ABI abi3t (PEP 803). If `python` of the
    matrix has a free-threaded Python from 3.15 on, one more wheel serves Python 3.15 and newer, with and without a GIL.
    It is compiled with the free-threaded Python."""

    @model_validator(mode="after")
    def _not_cpython(self) -> AbiModel:
        if self.abi3t and self.abi is AbiClass.CPYTHON:
            raise ValueError("abi3t is for the classes abi3 and stable; a wheel of class cpython is for one Python")
        return self


class SourceModel(fields.StrictModel):
    """Where the source is. Exactly one of `path`, `sdist`, `git` and `wheel` is required."""

    path: str | None = None
    """A folder with the source, relative to the folder of this file. `.` is the folder of this file."""
    sdist: fields.Name | None = None
    """A project on the package index whose source distribution is built. Needs `version` and `sha256`."""
    version: fields.VersionText | None = None
    """The exact version of the `sdist` or of the `wheel`."""
    sha256: fields.Sha256 | None = None
    """sha256 of the source distribution, in hex. buildfarm refuses a download with a different sha256."""
    git: fields.GitUrl | None = None
    """URL of a git repository. Needs `revision`."""
    revision: fields.Revision | None = None
    """Full hash of the commit to build (40 hex digits); tags and branches are refused."""
    subdirectory: Annotated[str, AfterValidator(fields.inside_tree)] | None = None
    """Folder of the source tree inside the git repository. Without this key, the top folder."""
    wheel: fields.Name | None = None
    """A project on the package index whose official wheel is tested. Nothing is built. Needs `version`."""

    @model_validator(mode="after")
    def _require_one_kind(self) -> SourceModel:
        needed = {"path": (), "sdist": ("version", "sha256"), "git": ("revision",), "wheel": ("version",)}
        kinds = [kind for kind in needed if getattr(self, kind)]
        if len(kinds) != 1:
            raise ValueError(f"must name exactly one of {', '.join(needed)}; it names {' and '.join(kinds) or 'none'}")
        if missing := [key for key in needed[kinds[0]] if not getattr(self, key)]:
            raise ValueError(f"{kinds[0]} also needs {' and '.join(missing)}")
        own = {*needed[kinds[0]], *(["subdirectory"] if kinds == ["git"] else [])}
        others = [key for key in ("version", "sha256", "revision", "subdirectory") if key not in own]
        if unused := [key for key in others if getattr(self, key)]:
            raise ValueError(f"{' and '.join(unused)} cannot be combined with {kinds[0]}")
        return self


class AcceptModel(fields.StrictModel):
    """A known finding, which does not refuse the wheel. The entry applies to findings that match all of its keys."""

    check: Check
    """The check, as `build` and `smoke` print it."""
    reason: str = Field(min_length=1)
    """Why the finding is accepted, one sentence. It is printed with the finding."""
    op: str = ""
    """The op, as the gate names it; for the check `loaded` the path of the library in the wheel. Without this key,
    every op."""
    cell: str = ""
    """Pattern of cell names; `*` matches any text. Without this key, every cell."""


class PatchModel(fields.StrictModel):
    """A patch, and the builds that it is for: those that match every key given here."""

    file: str = Field(min_length=1)
    """The patch file, in the folder of extension.yaml."""
    torch: fields.SpecifierText = ""
    """Version specifier of torch releases. Without this key, every release."""
    cuda: fields.SpecifierText = ""
    """Version specifier of CUDA versions. Without this key, every CUDA."""


#: `abi: cpython` is one rule for every torch release; a single text is a list of one.
_RULES = BeforeValidator(
    lambda value: [{"class": value}] if isinstance(value, str) else value,
    json_schema_input_type=AbiClass | list[AbiModel],
)
_TEXTS = BeforeValidator(
    lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]
)


#: A text is the patch of every build.
_PATCH = BeforeValidator(
    lambda value: {"file": value} if isinstance(value, str) else value, json_schema_input_type=str | PatchModel
)


class RecipeModel(fields.StrictModel):
    """extension.yaml: one extension and how it is built."""

    name: fields.NamePattern
    """Distribution name of the wheel. `{cuda}` is the CUDA of the build (13.0: 130), `{cuda_major}` its major version
    (13), `{torch}` its torch (2.11: 211). The name of the extension is the name without these."""
    version: fields.VersionPattern
    """Version of the extension, without a local part. buildfarm adds one: +cu130.torch2.11, or +cu13 for a stable-ABI
    wheel. `{cuda}`, `{cuda_major}` and `{torch}` are filled in as in `name`."""
    summary: str = ""
    """One line about the extension."""
    source: SourceModel
    """Where the source is: a `path`, an `sdist`, a `git` repository or an official `wheel`."""
    patches: tuple[Annotated[PatchModel, _PATCH], ...] = ()
    """Patch files in the folder of this file. `patch -p1` applies them to the source, in this order. An entry may name
    the builds that need it: `{file: new.patch, torch: ">=2.6"}`."""
    abi: Annotated[list[AbiModel], _RULES] = Field(min_length=1)
    """The ABI class, or a list of rules. The first rule whose `torch` contains the torch release applies. Cells of a
    torch release without a rule are skipped."""
    cuda: Literal["required", "optional"] = "required"
    """`required`: a wheel without GPU code fails the check `payload`. `optional`: a wheel without GPU code is
    allowed."""
    env: dict[fields.EnvName, fields.EnvText] = Field(default={})
    """Environment variables of the build. A variable replaces the value that buildfarm sets. Compiler flags are
    appended to buildfarm's value instead: `NVCC_PREPEND_FLAGS`, `NVCC_APPEND_FLAGS`, and each variable of capital
    letters that ends in `FLAGS`, such as `CFLAGS`."""
    config_settings: dict[fields.SettingName, Annotated[tuple[str, ...], _TEXTS]] = Field(default={})
    """Options of the build backend, as `-C KEY=VALUE` of pip, uv and build passes them. For a setup.py that reads
    `sys.argv`: the key `--global-option`."""
    build_requires: tuple[fields.RequirementText, ...] = ()
    """Requirements installed before the build. torch, ninja, setuptools, wheel, pip and numpy are always installed. In
    containers, triton is installed only if it is named here."""
    requires: tuple[fields.RequirementText, ...] = ()
    """Run-time requirements that buildfarm adds to the METADATA of the wheel. One without a version takes the place of
    a requirement of the source that names the newest version that it accepts, such as `numpy<1.20`."""
    wheel_exclude: tuple[str, ...] = ()
    """Patterns of files that the wheel leaves out, as paths in site-packages; `*` also matches `/`. For the source of
    another project that installs its tests."""
    requires_torch: Literal["window", "source"] = "window"
    """What METADATA of the wheel requires of torch. `window`: the releases that the wheel is tested for, which are the
    series for the classes `cpython` and `abi3` (`torch==2.11.*`), and every release from the oldest on for `stable`
    (`torch>=2.10`). A narrower requirement of the source is kept. `source`: the requirement of the source,
    unchanged."""
    assume_cuda: bool = False
    """Make torch.cuda answer during the build as on a machine with a GPU of each architecture of the plan:
    is_available, device_count, get_device_capability, get_device_name, get_device_properties. For a setup.py that
    compiles CUDA code only on a machine with a GPU."""
    override_architectures: bool = False
    """Compile for the architectures of the plan, also if the source names others. buildfarm replaces the source's
    architecture options in each call of nvcc, and does not change the source."""
    archs: tuple[fields.ArchName, ...] = ()
    """GPU architectures to compile for, such as 8.0, 9.0a or 12.0+PTX. Without this key: `archs` in matrix.yaml, else
    the architectures of torch's own wheels."""
    python: fields.SpecifierText = ""
    """Version specifier of the Pythons that the extension supports. Without this key, every Python."""
    imports: list[fields.Module] = Field(min_length=1)
    """Modules that must be importable from the installed wheel."""
    needs_first: tuple[fields.Module, ...] = ()
    """Modules that users must import before those of `imports`. The checks import them first. Better: the package
    imports them itself."""
    accepts: tuple[AcceptModel, ...] = ()
    """Known findings: the wheel is not refused because of them. A finding is a failed check or a remark. It is reported
    as accepted, never as passed."""
    companions: tuple[fields.RequirementText, ...] = ()
    """Requirements installed after the import check, such as those of cases.py. The check `import-order` imports torch,
    the extension and these packages in different orders. With one companion, it tries every order; with more, it
    imports each pair in both directions."""
    libraries: dict[str, tuple[str, ...]] = Field(default={})
    """Maps the name of each shared library, without its suffix, to the dispatch keys that the library must register."""
    max_size: fields.Bytes | None = None
    """The largest wheel file that the check `size` passes. Without this key, any size passes."""
    seconds_per_case: int = Field(default=SECONDS_PER_CASE, gt=0)
    """Time limit of one check with one case, in seconds. Slow checks get a multiple of the limit. A check that fails
    because of the limit runs again in the next `build`."""
    memory_per_job: fields.Bytes = Field(default=MEMORY_PER_JOB, json_schema_extra={"default": "2GiB"})
    """Memory that one compiler process needs at most. buildfarm runs only as many compilers in parallel as the memory
    allows."""
