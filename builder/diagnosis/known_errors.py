"""Reads known_errors.yaml: what is known about errors of compilers, with the source of each fact."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat_table import read_text_yaml

_FILE = Path(__file__).with_name("known_errors.yaml")

#: The keys of the file with errors; an error is looked for in this order.
SECTIONS = ("removed_from_torch", "missing_include", "removed_from_cuda", "compilers", "sources", "outputs", "imports")
#: How gcc, clang and nvcc say that they do not know a name; every quote is written '.
_UNKNOWN_NAME = (
    r"'(?:\w+::)*(?P<name>{names})(?:\(.*\))?'"
    r" (?:was not declared|has not been declared|does not name a type|is not a member of)"
    r"|(?:identifier|unknown type name|has no member|has no member named|no member named|no type named)"
    r" '(?:\w+::)*(?P<member>{names})'"
)
#: How they say that they do not find a header.
NO_HEADER = (
    r"error: (?P<header>{headers}): No such file or directory|'(?P<clang>{headers})' file not found"
    r"|cannot open source file '(?P<nvcc>{headers})'"
)


@dataclass(frozen=True)
class KnownError:
    """An error of compilers whose cause is known."""

    #: The key of the file that the row is below.
    section: str
    #: What the row is about, for people: names, headers, or the text of the file.
    about: str
    #: Expressions that find the error in a message whose quotes are all '.
    forms: tuple[re.Pattern[str], ...]
    #: The release of torch that brought the error, or None.
    torch: Torch | None
    #: The CUDA version that brought it, or None.
    cuda: Cuda | None
    #: What to do; known names in braces are replaced.
    hint: str
    #: How the fact was checked.
    source: str
    #: The name for `reports`, or "".
    id: str = ""
    #: Why the program fails, one sentence; "" if `hint` says it.
    cause: str = ""
    #: A text in which `forms` find the error, or "".
    example: str = ""


@dataclass(frozen=True)
class Package:
    """What has a header, a library or a CMake package."""

    #: Expression of the paths of its headers.
    headers: str
    #: cmake, library: the names for `find_package` and `-l`, or "".
    cmake: str = ""
    library: str = ""
    #: debian, dnf, pypi: the package that brings it, or "".
    debian: str = ""
    dnf: str = ""
    pypi: str = ""
    #: The distribution that `pypi` installs, if its name differs, or "".
    brings: str = ""
    #: The name of a project that sources have as a git submodule, or "".
    submodule: str = ""


@dataclass(frozen=True)
class Knowledge:
    """The complete file."""

    #: Errors with known causes, in the order of the file.
    errors: tuple[KnownError, ...]
    #: What has which headers, libraries and CMake packages.
    packages: tuple[Package, ...]
    #: Python modules to requirements.
    modules: dict[str, str]
    #: Programs to requirements of the package index.
    programs: dict[str, str]


@cache
def knowledge() -> Knowledge:
    """The contents of known_errors.yaml. A mistake in it is a bug and raises KeyError, TypeError or ValueError."""
    raw = read_text_yaml(_FILE)
    return Knowledge(
        errors=tuple(_error(section, row) for section in SECTIONS for row in raw[section]),
        packages=tuple(Package(**row) for row in raw["packages"]),
        modules={name: name for name in raw["same_name"].split()} | raw["modules"],
        programs=dict(raw["programs"]),
    )


def plain_quotes(text: str) -> str:
    """A text in which every quote is '."""
    return re.sub('[\u2018\u2019"`]', "'", text)


def reports(name: str, text: str) -> re.Match[str] | None:
    """Where a program reports the failure with this id; None if it does not. Raises KeyError for an unknown id."""
    return _by_id()[name].forms[0].search(plain_quotes(text))


def hint_of(name: str) -> str:
    """What to do about the failure with this id. Raises KeyError for an unknown id."""
    return _by_id()[name].hint


@cache
def _by_id() -> dict[str, KnownError]:
    return {error.id: error for error in knowledge().errors if error.id}


def _error(section: str, row: dict[str, Any]) -> KnownError:
    if unknown := set(row) - {"names", "headers", "message", *(field.name for field in fields(KnownError))}:
        raise ValueError(f"{_FILE.name}: unknown keys {unknown}")
    about = [f"`{name}`" for name in row.get("names", ())]
    forms = [_UNKNOWN_NAME.replace("{names}", "|".join(row["names"]))] if about else []
    if headers := row.get("headers"):
        forms.append(NO_HEADER.replace("{headers}", headers))
        readable = re.sub(r"\\(.)|\(\?:", r"\1", headers.split("|")[0]).replace(".*", "…").replace("w*", "…")
        about.append(f"`<{readable}>`")
    if message := row.get("message"):
        forms.append(message)
    return KnownError(
        section=section,
        about=row.get("about", ", ".join(about)),
        forms=tuple(map(re.compile, forms)),
        torch=Torch.parse(f"{row['torch']}.0") if "torch" in row else None,
        cuda=Cuda.parse(row["cuda"]) if "cuda" in row else None,
        hint=row["hint"],
        source=row["source"],
        id=row.get("id", ""),
        cause=row.get("cause", ""),
        example=row.get("example", ""),
    )
