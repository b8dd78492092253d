"""A recipe's source as a clean, patched tree, and the digest of all in it that can change the wheel."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from builder.errors import UsageError
from builder.matrix.config import CASES, GitSource, PathSource, Recipe, SdistSource, WheelSource
from builder.wheels.checkout import checkout
from builder.wheels.patches import apply_patches
from builder.wheels.sdist import fetch_sdist
from builder.wheels.unpack import unpack

# What earlier builds and test runs leave in a source folder: never source, often different on every machine.
_LEFTOVER_NAMES = frozenset(
    {
        ".git", ".hypothesis", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".tox", ".venv",
        "__pycache__",
    }
)  # fmt: skip
_LEFTOVER_SUFFIXES = (".egg-info", ".pyc", ".so")
# Only at the top: `src/build/` may well be somebody's package. The top-level `tests/`, the recipe and its op
# cases are neither in the digest nor in the tree a build sees, so a changed test or summary
# can neither cause nor need a rebuild.
_LEFT_OUT_AT_TOP = frozenset({"build", "dist", "tests", "extension.yaml"})
_LEFT_OUT_WITH_CASES = _LEFT_OUT_AT_TOP | {CASES, "references"}


def prepare_source(recipe: Recipe, target: Path, *, cache: Path) -> None:
    """Fill the empty folder `target` with the recipe's source and apply its patches in order.

    What is downloaded goes to `cache` (`sdists/<sha256>/`, `git/`) whole or not at all, and is used from
    there the next time without asking the network. Of a git repository with a `subdirectory` only that
    folder is taken. On any error `target` is empty again.

    Raises UsageError when the recipe is wrong (digest, commit, archive, patch, path) and MissingToolError
    when something cannot be had: no network, no git.
    """
    try:
        match recipe.source:
            case PathSource(path=path):
                _copy(_source_files(path), target, root=path)
            case SdistSource() as source:
                unpack(fetch_sdist(source, cache=cache), target)
            case GitSource() as source:
                root = checkout(source, cache=cache)
                if not (top := root / source.subdirectory).is_dir():
                    raise UsageError(
                        f"there is no folder {source.subdirectory!r} in the repository at {source.revision}",
                        where=source.url,
                        hints=("correct `subdirectory` in the recipe",),
                    )
                _copy(_tracked_files(top), target, root=root, top=top)
            case WheelSource():
                raise AssertionError("the plan builds nothing from an official wheel")
        apply_patches(recipe.patches, target)
    except BaseException:
        _empty(target)
        raise


def source_digest(recipe: Recipe, *, cache: Path) -> str:  # noqa: ARG001 - needs none yet
    """Name the source by content: sha256 (hex) over what `prepare_source` would put into its tree.

    For a path the files themselves (relative path, executable bit, bytes; links by their target); for an
    sdist its declared sha256; for git commit and subdirectory. Then every patch, in order. Nothing is
    downloaded or run. Raises UsageError when a file of the recipe cannot be read.
    """
    digest = hashlib.sha256(b"buildfarm source 1\n")
    match recipe.source:
        case PathSource(path=path):
            for name, file in _source_files(path):
                digest.update(_entry(name, file))
        case SdistSource(sha256=sha256):
            digest.update(f"sdist {sha256.lower()}\n".encode())
        case GitSource(revision=revision, subdirectory=subdirectory):
            digest.update(f"git {revision} {subdirectory}\n".encode())
        case WheelSource(project=project, version=version):
            digest.update(f"wheel {project} {version}\n".encode())
    for patch in recipe.patches:
        digest.update(f"patch {_sha256(patch)}\n".encode())
    return digest.hexdigest()


def _entry(name: str, file: Path) -> bytes:
    """A line of a tree's digest: kind, path, content. NUL cannot stand in a path, so none collide."""
    if file.is_symlink():
        return b"link " + os.fsencode(name) + b"\0" + os.fsencode(file.readlink()) + b"\n"
    kind = b"exec " if file.stat().st_mode & stat.S_IXUSR else b"file "
    return kind + os.fsencode(name) + b"\0" + _sha256(file).encode() + b"\n"


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(file)) from None


def _source_files(root: Path) -> list[tuple[str, Path]]:
    """Relative path and file for all that counts as source under a recipe's folder, sorted by path."""
    if not root.is_dir():
        raise UsageError("the source folder does not exist", where=str(root), hints=("correct `source` in the recipe",))
    return sorted(_walk(root, root, _LEFT_OUT_WITH_CASES if (root / CASES).is_file() else _LEFT_OUT_AT_TOP))


def _walk(folder: Path, root: Path, left_out: frozenset[str]) -> Iterator[tuple[str, Path]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in left_out | _LEFTOVER_NAMES or entry.name.endswith(_LEFTOVER_SUFFIXES):
                continue
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(path, root, frozenset())
            else:
                yield path.relative_to(root).as_posix(), path


def _tracked_files(top: Path) -> list[tuple[str, Path]]:
    """All of a verified checkout below `top`: git has said what is source, so only `.git` stays behind."""
    files = []
    for folder, folders, names in os.walk(top):
        # A link to a folder is listed among the folders, but is an entry of its own.
        links = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = [name for name in folders if name != ".git" and name not in links]
        files += [Path(folder, name) for name in [*names, *links] if name != ".git"]
    return sorted((file.relative_to(top).as_posix(), file) for file in files)


def _copy(files: list[tuple[str, Path]], target: Path, *, root: Path, top: Path | None = None) -> None:
    """Copy with modes 0644 or 0755, so that the umask of whoever checked it out reaches no wheel.

    A link within `top` (or `root`) stays a link; from there to elsewhere in `root` it becomes the file.
    """
    for name, file in files:
        end = file.resolve()
        if not end.is_relative_to(root.resolve()):
            raise UsageError(
                f"the link leads out of the source tree, to {file.readlink()}, which is in no digest",
                where=str(file),
                hints=("replace the link by the file it points to",),
            )
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        inside = end.is_relative_to((top or root).resolve())
        mode = (file.lstat() if inside else end.stat()).st_mode
        if stat.S_ISLNK(mode):
            copy.symlink_to(file.readlink())
        elif stat.S_ISREG(mode):
            shutil.copyfile(file, copy)
            copy.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
        else:
            raise UsageError("is neither a file, a folder nor a link", where=str(file))


def _empty(folder: Path) -> None:
    for entry in list(folder.iterdir()) if folder.is_dir() else []:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
