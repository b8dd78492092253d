"""What a user names as a source: a project of the package index, a git repository or a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from builder.errors import UsageError

_HINTS = (
    "pass a project of the package index: torch-scatter==2.1.2, or torch-scatter for its newest version",
    "pass a git repository, with a branch, a tag or a full commit hash: https://host/owner/name@v1.0",
    "pass a folder with a setup.py or a pyproject.toml: ./name",
)


@dataclass(frozen=True)
class ProjectReference:
    """A project of the package index; `version` is empty for the newest."""

    project: str
    version: str


@dataclass(frozen=True)
class GitReference:
    """A git repository; `revision` is a branch, a tag or a commit, or empty for the default branch."""

    url: str
    revision: str
    subdirectory: str


@dataclass(frozen=True)
class FolderReference:
    """A folder on this machine."""

    path: Path


Reference = ProjectReference | GitReference | FolderReference


def parse_reference(text: str) -> Reference:
    """Parse the argument SOURCE of `add` and `build`. Raises UsageError."""
    address, _, fragment = text.removeprefix("git+").partition("#")
    subdirectory = fragment.removeprefix("subdirectory=") if fragment.startswith("subdirectory=") else ""
    if remote := re.fullmatch(r"(?:(\w+)://)([^/]*)(/.*)", address):
        path, _, revision = remote[3].partition("@")
        if remote[1] in ("https", "http", "ssh", "file"):
            return GitReference(f"{remote[1]}://{remote[2]}{path}", revision, subdirectory)
        raise UsageError(f"{remote[1]!r} is not a supported kind of URL", where=text, hints=_HINTS)
    if secure := re.fullmatch(r"([\w.-]+@[\w.-]+:[^@]+)(?:@(.+))?", address):
        return GitReference(secure[1], secure[2] or "", subdirectory)
    if Path(text).is_dir():
        return FolderReference(Path(text))
    folder, _, revision = address.rpartition("@")
    if (folder and (Path(folder) / ".git").exists()) or (address.endswith(".git") and Path(address).is_dir()):
        home = Path(folder if folder else address).resolve()
        return GitReference(home.as_uri(), revision if folder else "", subdirectory)
    return _project(text)


def _project(text: str) -> ProjectReference:
    if "/" in text or text.startswith("."):
        raise UsageError("there is no such folder", where=text, hints=_HINTS)
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        raise UsageError("this is not a project, a git repository or a folder", where=text, hints=_HINTS) from None
    exact = [each.version for each in wanted.specifier if each.operator == "==" and "*" not in each.version]
    if wanted.extras or wanted.marker or wanted.url or len(wanted.specifier) != len(exact) or len(exact) > 1:
        raise UsageError("the version must be exact", where=text, hints=[f"pass {wanted.name}==VERSION", *_HINTS])
    return ProjectReference(wanted.name, *exact or [""])
