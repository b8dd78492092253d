"""Fetch a source and pin it: an exact version and sha256, or a full commit. Nothing of it is executed."""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from builder.errors import Code, UsageError, mask_credentials
from builder.matrix.config import GitSource, PathSource, Recipe, SdistSource, Source
from builder.wheels.sources.git import resolve_revision
from builder.wheels.sources.index import download
from builder.wheels.sources.prepare import locate_sdist, prepare_source, project_folder

_HINTS = (
    "pass a project of the package index: torch-scatter==2.1.2, or torch-scatter for its newest version",
    "pass a git repository, with a branch, a tag or a full commit hash: https://host/owner/name@v1.0",
    "pass a folder with a setup.py or a pyproject.toml: ./name",
)


#: What SOURCE names, before it is pinned: an sdist without its sha256, whose version is empty for the newest; a git
#: repository at a branch, a tag or a commit, or empty for the default branch; a folder on this machine.
Reference = SdistSource | GitSource | PathSource


def parse_reference(text: str) -> Reference:
    """Parse the argument SOURCE of `add` and `build`. Raises UsageError."""
    address, _, fragment = text.removeprefix("git+").partition("#")
    stated = dict(part.partition("=")[::2] for part in fragment.split("&") if part)
    if stated.keys() - {"subdirectory", "egg"}:  # pip's `egg` is the name, which the source states itself
        raise _refused("after `#`, only `subdirectory=FOLDER` has a meaning", text)
    subdirectory = stated.get("subdirectory", "")
    if remote := re.fullmatch(r"(?:(\w+)://)([^/]*)(/.*)", address):
        path, _, revision = remote[3].partition("@")
        if remote[1] in ("https", "http", "ssh", "file"):
            return GitSource(f"{remote[1]}://{remote[2]}{path}", revision, subdirectory)
        raise _refused(f"{remote[1]!r} is not a supported kind of URL", text)
    if secure := re.fullmatch(r"([\w.-]+@[\w.-]+:[^@]+)(?:@(.+))?", address):
        return GitSource(secure[1], secure[2] or "", subdirectory)
    if Path(text).is_dir():
        return PathSource(Path(text))
    folder, _, revision = address.rpartition("@")
    if (folder and (Path(folder) / ".git").exists()) or (address.endswith(".git") and Path(address).is_dir()):
        home = Path(folder if folder else address).resolve()
        return GitSource(home.as_uri(), revision if folder else "", subdirectory)
    if text.endswith(".whl"):
        raise _refused(
            "this is a wheel, not a source", text, hints=["`buildfarm smoke`, `verify` and `adopt` take a wheel"]
        )
    if Path(text).is_file():
        raise _refused("this is a file, not a source", text)
    if "/" in text or text.startswith("."):
        raise _refused("there is no such folder", text, Code.NO_SUCH_FILE)
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        raise _refused("this is not a project, a git repository or a folder", text) from None
    exact = [each.version for each in wanted.specifier if each.operator == "==" and "*" not in each.version]
    if wanted.extras or wanted.marker or wanted.url or len(wanted.specifier) != len(exact) or len(exact) > 1:
        hints = [f"pass {wanted.name}==VERSION", *_HINTS]
        raise _refused("the version must be exact", text, Code.VALUE_INVALID, hints)
    return SdistSource(wanted.name, (*exact, "")[0], sha256="")


def _refused(
    sentence: str, text: str, code: Code = Code.SOURCE_UNSUPPORTED, hints: Sequence[str] = _HINTS
) -> UsageError:
    return UsageError(sentence, code, where=text, hints=hints)


@dataclass(frozen=True)
class PinnedSource:
    """A source that always means the same files."""

    source: Source  # what the recipe names
    label: str  # the source for a comment: `torch-scatter==2.1.2`
    default_name: str  # the name if the source does not state one


def pin(reference: Reference) -> PinnedSource:
    """Pin a source; asks the index or the repository.

    Raises UsageError if there is no such project, version or revision, MissingToolError without network or git.
    """
    match reference:
        case SdistSource():
            source = _pin_sdist(reference)
            return PinnedSource(source, f"{source.project}=={source.version}", source.project)
        case GitSource(url=url, revision=revision, subdirectory=subdirectory):
            commit = resolve_revision(url, revision)
            label = mask_credentials(url) + (f"@{revision}" if revision else "")
            name = (subdirectory or url).rstrip("/").rpartition("/")[2].removesuffix(".git")
            return PinnedSource(GitSource(url, commit, subdirectory), label, name)
        case PathSource(path=path):
            return PinnedSource(PathSource(path.resolve()), str(path), path.resolve().name)


def unpack_source(pinned: PinnedSource, target: Path, *, cache: Path) -> Path:
    """Fill the empty folder `target` with the source; returns the folder to build. Raises as `prepare_source` does."""
    recipe = Recipe(name=pinned.default_name, version="0", folder=target, source=pinned.source)
    prepare_source(recipe, target, cache=cache)
    return project_folder(recipe, target)


def _pin_sdist(reference: SdistSource) -> SdistSource:
    try:
        location = locate_sdist(reference.project, reference.version)
    except UsageError as error:
        hints = [*error.hints, "if the project publishes no source distribution, name its git repository: https://…"]
        raise UsageError(error.sentence, error.code, where=error.where, hints=hints) from None
    sha256 = location.sha256
    if not sha256:  # an index without hashes
        with tempfile.TemporaryDirectory() as folder:
            sha256 = download(location, Path(folder, "sdist"), kind="source distribution", where=reference.project)
    return SdistSource(reference.project, reference.version or location.version, sha256)
