"""The values that keys of matrix.yaml and extension.yaml may have: how each is parsed.

The annotated types at the end are the fields of `builder.matrix.models`. A value that cannot be parsed raises
ValueError with one sentence, which `builder.matrix.yaml_document` turns into an error at the key.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainValidator, model_validator

from builder.errors import Code, UsageError
from builder.matrix.axes import Arch, Cuda, Python, Torch
from builder.matrix.compat import Compat

T = TypeVar("T")

_COMPONENT = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
#: An image name, as the project "distribution" defines it (reference/reference.go): host, path, tag, digest.
IMAGE_PATTERN = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/)?"
    rf"{_COMPONENT}(?:/{_COMPONENT})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)

#: Characters of a version or another short value. Python converts no more than 4300 digits to a number.
_SHORT = 200

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])(i?B)?", re.IGNORECASE)


def _parsed(parse: Callable[[str], T]) -> PlainValidator:
    """Return a validator that calls one of our parsers; a UsageError of it becomes the error at the key."""

    def read(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError("must be one value, not a list or a mapping")
        _check_length(value)
        try:
            return parse(value)
        except UsageError as error:
            raise ValueError(error.sentence) from None

    return PlainValidator(read, json_schema_input_type=str)


def _check_length(text: str, limit: int = _SHORT) -> None:
    if len(text) > limit:
        raise ValueError(f"has {len(text)} characters; at most {limit} are possible")


def _readable(read: Callable[[str], object], message: str) -> AfterValidator:
    """Return a validator for text that `read` must be able to read: it raises ValueError or returns None otherwise."""

    def check(value: str) -> str:
        _check_length(value, 1000)
        with suppress(ValueError):
            if read(value) is not None:
                return value
        raise ValueError(f"{value!r} {message}")

    return AfterValidator(check)


def _matching(pattern: str, message: str) -> AfterValidator:
    return _readable(re.compile(pattern).fullmatch, message)


def _version_pattern(text: str) -> str:
    """Refuse what is no version once numbers stand in place of the braces."""
    try:
        _version(re.sub(r"\{(?:cuda|cuda_major|torch)\}", "0", text))
    except ValueError as error:
        if "{" not in text:
            raise
        raise ValueError(
            f"{text!r} is not a version; write it like 1.2.3 or 1.2.post{{cuda}}, with {{cuda}}, {{cuda_major}} and"
            " {torch}, and without a local part"
        ) from error
    return text


def _version(text: str) -> str:
    _check_length(text)
    try:
        if text != text.strip():
            raise InvalidVersion(text)
        version = Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version; write it like 1.2.3") from None
    if version.local:
        raise ValueError(f"{text!r} has a local part (+{version.local}), which buildfarm adds itself")
    return text


def parse_size(text: str, where: str = "") -> int:
    """Return the bytes of `512MiB` or `20G` (powers of 1024), `20GB` (powers of 1000) or `0`. Raises UsageError."""
    if text == "0":
        return 0
    if len(text) > _SHORT or not (m := _SIZE.fullmatch(text)):
        sentence = f"{text[:_SHORT]!r} is not a size; write it like 512MiB or 2GiB"
        raise UsageError(sentence, Code.VALUE_INVALID, where=where)
    base = 1000 if (m[3] or "").upper() == "B" else 1024
    return int(float(m[1]) * base ** ("KMGT".index(m[2].upper()) + 1))


def inside_tree(text: str) -> str:
    """Refuse a path that leaves the source tree."""
    if text.startswith("/") or ".." in PurePosixPath(text).parts:
        raise ValueError(f"{text!r} must be a path inside the source tree")
    return text


def specifier(text: str) -> str:
    """Return the version specifier that an axis of matrix.yaml names: `13.*` is `==13.*`."""
    return f"=={text}" if text[:1].isdigit() else text


def _or_range(known: Callable[[Compat], Iterable[object]]) -> BeforeValidator:
    """Return a validator that reads one version specifier as the list of the known versions that it admits."""

    def read(value: object) -> object:
        if not isinstance(value, str) or not re.match(r"[<>=!~]|\d+\.\*", value):
            return value  # a list, or an error that says so
        _check_length(value)
        try:
            wanted = SpecifierSet(specifier(value))
        except InvalidSpecifier:
            raise ValueError(f"{value!r} is not a version specifier; write it like >=2.10,<3") from None
        found = [text for text in map(str, known(Compat.load())) if wanted.contains(text)]
        if not found:
            raise ValueError(f"{value!r} admits no version that buildfarm or facts.yaml knows")
        return found

    return BeforeValidator(read)


TorchRelease = Annotated[Torch, _parsed(lambda text: Compat.load().resolve_torch(text))]
TorchText = Annotated[str, _parsed(lambda text: Compat.load().releases(text) and text)]
CudaVersion = Annotated[Cuda, _parsed(lambda text: Compat.load().resolve_cuda(text))]
PythonVersion = Annotated[Python, _parsed(lambda text: Compat.load().resolve_python(text))]
TorchReleases = Annotated[list[TorchRelease], _or_range(lambda compat: compat.newest_patches)]
CudaVersions = Annotated[list[CudaVersion], _or_range(lambda compat: compat.cudas)]
PythonVersions = Annotated[
    list[PythonVersion], _or_range(lambda compat: (one for one in compat.pythons if not one.free_threaded))
]
ArchName = Annotated[Arch, _parsed(Arch.parse)]
#: A version that may hold numbers of the cell in braces, such as `1.2.post{cuda}`.
VersionPattern = Annotated[str, AfterValidator(_version_pattern)]
VersionText = Annotated[str, AfterValidator(_version)]
Bytes = Annotated[int, _parsed(parse_size)]
Name = Annotated[str, _matching(r"[A-Za-z0-9_-]+", "is not a name for a wheel; use letters, digits, - and _")]
#: A name for a wheel that may hold numbers of the cell in braces, such as `ops-cu{cuda}`.
NamePattern = Annotated[
    str,
    _matching(
        r"(?=[A-Za-z0-9])(?:[A-Za-z0-9_-]|\{(?:cuda|cuda_major|torch)\})+",
        "is not a name for a wheel; use letters, digits, - and _, and {cuda}, {cuda_major} and {torch}",
    ),
]
EnvName = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "is not a name for an environment variable")]
#: An environment variable without a value is set to empty text.
EnvText = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
SettingName = Annotated[str, _matching(r"[^\s=]+", "is not a name for an option; it may hold no space and no =")]
Module = Annotated[str, _matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "is not a module name; write it like torch_scatter")]
Sha256 = Annotated[str, _matching(r"[0-9a-f]{64}", "is not a sha256: 64 digits 0-9 and a-f")]
Revision = Annotated[str, _matching(r"[0-9a-f]{40}", "is not a full commit hash: 40 digits 0-9 and a-f")]
GitUrl = Annotated[
    str, _matching(r"(https?|ssh|file)://\S+|[\w.-]+@[\w.-]+:\S+", "is not a git URL; write it like https://…/name.git")
]
ImageName = Annotated[
    str, _matching(IMAGE_PATTERN, "is not an image name; write it like registry.example/team/cuda12:2026-11-01")
]
RequirementText = Annotated[str, _readable(Requirement, "is not a requirement; write it like setuptools>=77")]
SpecifierText = Annotated[str, _readable(SpecifierSet, "is not a version specifier; write it like >=2.10,<3")]


class StrictModel(BaseModel):
    """A mapping in a file. It refuses unknown keys; a known key without a value counts as not given."""

    # Building the validators takes time that commands which read no YAML do not have to spend.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:  # noqa: ANN401
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {k: v for k, v in data.items() if v is not None or k not in known} if isinstance(data, dict) else data
