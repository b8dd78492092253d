"""The shape of matrix.yaml and extension.yaml: keys, types, what each value must be. Touches no file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from builder.errors import UsageError
from builder.matrix.axes import AbiClass, Arch, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat

T = TypeVar("T")
_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _parsed(parse: Callable[[str], T]) -> PlainValidator:
    """A value our own parser reads; its sentence becomes the error at that key."""

    def read(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError("must be one value, not a list or a mapping")
        try:
            return parse(value)
        except UsageError as error:
            raise ValueError(error.sentence) from None

    return PlainValidator(read)


def _seen_as(description: str, pattern: str) -> WithJsonSchema:
    """What an editor is told; numbers too, for an editor reads an unquoted 2.10 as one."""
    return WithJsonSchema({"type": ["string", "number"], "pattern": pattern, "description": description})


def _matching(pattern: str, message: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} {message}")
        return value

    return AfterValidator(check)


def _torch(text: str) -> Torch:
    return Compat.load().resolve_torch(text)


def _torch_text(text: str) -> str:
    Compat.load().releases(text)
    return text


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement:
        raise ValueError(f"{text!r} is not a requirement; write it like setuptools>=77") from None
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version specifier; write it like >=2.10,<3") from None
    return text


def _version(text: str) -> str:
    try:
        version = Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version; write it like 1.2.3") from None
    if version.local:
        raise ValueError(f"{text!r} has a local part (+{version.local}), which the farm writes itself")
    return text


def _size(text: str) -> int:
    if not (m := re.fullmatch(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB)", text)):
        raise UsageError(f"{text!r} is not an amount of memory; write it like 2GiB or 512MiB")
    return int(float(m[1]) * _SIZES[m[2]])


def _inside(text: str) -> str:
    if text.startswith("/") or ".." in PurePosixPath(text).parts:
        raise ValueError(f"{text!r} must be a path inside the source tree")
    return text


def _none_is_empty(value: object) -> object:
    return "" if value is None else value


def _one_rule(value: object) -> object:
    """`abi: cpython` is short for one rule that takes every torch."""
    return [{"class": value}] if isinstance(value, str) else value


TorchRelease = Annotated[
    Torch, _parsed(_torch), _seen_as("A torch series (its newest patch) or release.", r"^\d+\.\d+(\.\d+)?$")
]
TorchText = Annotated[str, _parsed(_torch_text), _seen_as("A torch series or release.", r"^\d+\.\d+(\.\d+)?$")]
CudaVersion = Annotated[
    Cuda,
    _parsed(lambda text: Compat.load().resolve_cuda(text)),
    _seen_as("A CUDA version, 13.0 or cu130.", r"^(\d+\.\d+|cu\d{2,})$"),
]
PythonVersion = Annotated[
    Python,
    _parsed(lambda text: Compat.load().resolve_python(text)),
    _seen_as("A Python version, 3.12, or 3.13t when free-threaded.", r"^(\d+\.\d+t?|cp\d{2,}t?)$"),
]
ArchName = Annotated[
    Arch,
    _parsed(Arch.parse),
    _seen_as("A GPU architecture, 9.0, 9.0a or 9.0+PTX.", r"^\d+\.\d[af]?(\+PTX)?$"),
]
VersionText = Annotated[str, AfterValidator(_version), WithJsonSchema({"type": ["string", "number"]})]
Bytes = Annotated[int, _parsed(_size), WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?(KiB|MiB|GiB)$"})]
Name = Annotated[
    str,
    _matching(r"[A-Za-z0-9_-]+", "is not a name for a wheel; use letters, digits, - and _"),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9_-]+$"}),
]
EnvName = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "is not a name for an environment variable")]
EnvText = Annotated[
    str, BeforeValidator(_none_is_empty), WithJsonSchema({"type": ["string", "number", "boolean", "null"]})
]
Module = Annotated[str, _matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "is not a module name; write it like torch_scatter")]
Sha256 = Annotated[
    str,
    _matching(r"[0-9a-f]{64}", "is not a sha256: 64 digits 0-9 and a-f"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{64}$"}),
]
Revision = Annotated[
    str,
    _matching(r"[0-9a-f]{40}|[0-9a-f]{64}", "is not a full commit hash: 40 digits 0-9 and a-f"),
    WithJsonSchema({"type": "string", "pattern": "^([0-9a-f]{40}|[0-9a-f]{64})$"}),
]
GitUrl = Annotated[
    str,
    _matching(r"(https?|ssh|file)://\S+|[\w.-]+@[\w.-]+:\S+", "is not a git URL; write it like https://…/name.git"),
]
RequirementText = Annotated[str, AfterValidator(_requirement)]
SpecifierText = Annotated[str, AfterValidator(_specifier)]


class Door(BaseModel):
    """One mapping of a file: unknown keys are refused, a key without a value counts as not written."""

    # Deferred: verbs that read no YAML need not wait for the validators to be made.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:  # noqa: ANN401
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {k: v for k, v in data.items() if v is not None or k not in known} if isinstance(data, dict) else data


class ExcludeModel(Door):
    """Cells left out on purpose: those that match every axis given."""

    reason: str = Field(min_length=1, description="Why; the plan shows it.")
    torch: TorchText | None = None
    cuda: CudaVersion | None = None
    python: PythonVersion | None = None
    extension: str | None = Field(default=None, description="The name of an extension; all of them without it.")

    @model_validator(mode="after")
    def _some_axis(self) -> ExcludeModel:
        if not any((self.torch, self.cuda, self.python, self.extension)):
            raise ValueError("leaves out every cell; name at least one of torch, cuda, python, extension")
        return self


class ImageModel(Door):
    """A base image for some cells."""

    cells: str = Field(description="Pattern of cell names, such as torch2.1*-cu118-*.")
    image: str = Field(description="Name of the base image, with its tag or digest.")
    pythons: str | None = Field(
        default=None,
        description="Image to copy /opt/python from, in place of pypa's manylinux image; may be the base itself.",
    )
    runtime: str | None = Field(
        default=None, description="Base image to run these cells in, in place of `image`: it needs no toolkit."
    )
    toolkit: CudaVersion | None = Field(
        default=None,
        description="The CUDA toolkit in the image, where that is another minor of the cells' major; wheels say so.",
    )


class MatrixModel(Door):
    """matrix.yaml: what the farm builds, and for whom."""

    torch: list[TorchRelease] = Field(min_length=1, description="PyTorch series or releases.")
    cuda: list[CudaVersion] = Field(min_length=1, description="CUDA versions of the torch wheels.")
    python: list[PythonVersion] = Field(min_length=1, description="CPython versions.")
    archs: list[ArchName] = Field(
        default=[], description="GPU architectures; without it torch's own list of each cell."
    )
    platforms: list[Platform] = Field(default=[Platform.LINUX_X86_64], min_length=1, description="Where wheels run.")
    extensions: list[str] = Field(description="Folders with an extension.yaml, relative to this file.")
    exclude: list[ExcludeModel] = Field(default=[], description="Cells left out on purpose.")
    images: list[ImageModel] = Field(default=[], description="Base images; the first pattern that fits wins.")
    torch_index: str = Field(
        default="https://download.pytorch.org/whl/{variant}",
        description="PyTorch's index, for CUDAs the package index does not serve; {variant} becomes cu130.",
    )


class AbiModel(Door):
    """One rule: which ABI class holds for which torch releases."""

    abi: AbiClass = Field(alias="class", description="What the binary is tied to.")
    torch: SpecifierText = Field(default="", description="Specifier of torch releases, such as >=2.10; all without it.")


class SourceModel(Door):
    """Where the source is: exactly one of path, sdist, git, wheel."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [kind]} for kind in ("path", "sdist", "git", "wheel")]}
    )

    path: str | None = Field(default=None, description="A folder inside the recipe's own; `.` is that folder.")
    sdist: Name | None = Field(default=None, description="A project on the package index.")
    version: VersionText | None = None
    sha256: Sha256 | None = None
    git: GitUrl | None = Field(default=None, description="URL of a git repository.")
    revision: Revision | None = None
    subdirectory: Annotated[str, AfterValidator(_inside)] | None = None
    wheel: Name | None = Field(
        default=None, description="A project whose official wheel is proven as it is; nothing is built."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> SourceModel:
        belongs = {
            "path": (),
            "sdist": ("version", "sha256"),
            "git": ("revision", "subdirectory"),
            "wheel": ("version",),
        }
        kinds = [kind for kind in belongs if getattr(self, kind)]
        if len(kinds) != 1:
            raise ValueError(f"must name exactly one of {', '.join(belongs)}; it names {' and '.join(kinds) or 'none'}")
        needed = {"sdist": ("version", "sha256"), "git": ("revision",), "wheel": ("version",)}.get(kinds[0], ())
        if missing := [key for key in needed if not getattr(self, key)]:
            raise ValueError(f"{kinds[0]} needs {' and '.join(missing)} beside it")
        own = belongs[kinds[0]]
        others = dict.fromkeys(key for keys in belongs.values() for key in keys if key not in own)
        if strange := [key for key in others if getattr(self, key)]:
            raise ValueError(f"{' and '.join(strange)} does not go with {kinds[0]}")
        return self


class RecipeModel(Door):
    """extension.yaml: one extension and how it is built."""

    name: Name = Field(description="Distribution name of the wheel.")
    version: VersionText = Field(description="Version, without a local part.")
    summary: str = ""
    source: SourceModel
    patches: list[str] = Field(default=[], description="Files inside this folder, applied in order with patch -p1.")
    abi: Annotated[list[AbiModel], BeforeValidator(_one_rule, json_schema_input_type=AbiClass | list[AbiModel])] = (
        Field(
            min_length=1,
            description="ABI class, or rules in order; the first that takes the torch release decides.",
        )
    )
    cuda: Literal["required", "optional"] = Field(default="required", description="Whether device code must be inside.")
    env: dict[EnvName, EnvText] = Field(default={}, description="Environment of the build.")
    build_requires: list[RequirementText] = Field(default=[], description="Installed before the build.")
    requires: list[RequirementText] = Field(default=[], description="Run-time requirements added to the METADATA.")
    assume_cuda: bool = Field(default=False, description="Answer True to torch.cuda.is_available() while building.")
    cibuildwheel_skip: list[
        Literal["all", "before-all", "before-build", "environment", "config-settings", "build-frontend", "test"]
    ] = Field(default=[], description="What of the source's own [tool.cibuildwheel] is left aside in containers.")
    archs: list[ArchName] = Field(default=[], description="GPU architectures; without it those of the matrix.")
    python: SpecifierText = Field(default="", description="Specifier of Pythons it supports; all without it.")
    imports: list[Module] = Field(min_length=1, description="Modules that must import from the installed wheel.")
    companions: list[RequirementText] = Field(default=[], description="Distributions its import order is tested with.")
    libraries: dict[str, list[str]] = Field(
        default={}, description="Library stem to the dispatch keys it must register, such as _C: [CPU, CUDA]."
    )
    memory_per_job: Bytes = Field(
        default=2 * 2**30,
        description="Memory one compile job takes at its peak, such as 2GiB.",
        json_schema_extra={"default": "2GiB"},
    )
