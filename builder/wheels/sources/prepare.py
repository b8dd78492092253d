"""A recipe's source as a clean, patched tree, and the digest of everything in it that can change the wheel."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import Code, UsageError, mask_credentials
from builder.formats import sha256_of
from builder.matrix.config import GitSource, PathSource, Recipe, SdistSource, WheelSource
from builder.wheelfile import limits
from builder.wheelfile.archive import DAMAGE
from builder.wheels.sources.folder import source_files
from builder.wheels.sources.git import checkout
from builder.wheels.sources.patches import apply_patches

if TYPE_CHECKING:
    from builder.wheels.sources.index import Location


_KIND = "source distribution"
# The sdist may require a newer Python than buildfarm's own; the plan decides which Python builds it.
_ANY_PYTHON = ("--no-binary=:all:", "--python-version=3.99")
#: Errors of this machine; any other one is the archive's own.
_OF_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS)


@dataclass(frozen=True)
class PreparedSource:
    """A source as it was copied."""

    digest: str  # its `source_digest`
    files: Mapping[str, bytes]  # of a source folder, the line of the digest for each file; else empty


def prepare_source(recipe: Recipe, target: Path, *, cache: Path) -> PreparedSource:
    """Fill the empty folder `target` with the recipe's source and apply its patches in order.

    Downloads are kept in `cache` (`sdists/<sha256>/`, `git/`) once they are complete; later calls need no network. Of a
    git repository with a `subdirectory`, the other files are copied too, because the build may read `../version.txt`:
    `project_folder` is the folder to build, and patches apply to it. After an error, `target` is empty again. The
    result describes what was copied, also when a file of a folder changes meanwhile.

    Raises UsageError when the recipe is wrong (commit, archive, patch, path), and MissingToolError for a source
    distribution of another digest, and without network or git.
    """
    copied: dict[str, bytes] = {}
    try:
        match recipe.source:
            case PathSource(path=path):
                files = source_files(path)
                _copy(files, target, root=path)
                copied = {name: _entry(name, target / name) for name, _ in files}
            case SdistSource() as source:
                unpack(fetch_sdist(source, cache=cache), target)
            case GitSource() as source:
                root = checkout(source, cache=cache)
                top, fault = root / source.subdirectory, None
                if not top.is_dir():
                    fault = f"the repository has no folder {source.subdirectory!r} at {source.revision}"
                    code, hint = Code.NO_SUCH_FILE, "correct `subdirectory` in the recipe"
                elif not top.resolve().is_relative_to(root.resolve()):
                    fault = f"the folder {source.subdirectory!r} is a link that leads out of the repository"
                    code, hint = Code.SOURCE_UNSAFE, "name a folder of the repository in `subdirectory`"
                if fault:
                    raise UsageError(fault, code, where=mask_credentials(source.url), hints=[hint])
                project = project_folder(recipe, target)
                _copy(_tracked_files(top), project, root=root, top=top)
                if top.resolve() != root.resolve():  # the files beside the folder, without links that lead out
                    beside = [(name, file) for name, file in _tracked_files(root) if not file.is_relative_to(top)]
                    inside = [one for one in beside if one[1].resolve().is_relative_to(root.resolve())]
                    _copy(inside, target, root=root)
            case WheelSource():
                raise AssertionError("an official wheel has no source: a plan must not contain a build of this recipe")
        prepared = PreparedSource(_digest(recipe, copied), copied)
        apply_patches(recipe.patches, project_folder(recipe, target))
    except BaseException:
        shutil.rmtree(target)
        target.mkdir()
        raise
    return prepared


def project_folder(recipe: Recipe, tree: Path) -> Path:
    """The folder to build of a tree that `prepare_source` filled: its top, or the `subdirectory` of a git source."""
    return tree / recipe.source.subdirectory if isinstance(recipe.source, GitSource) else tree


def source_digest(recipe: Recipe) -> str:
    """sha256 (hex) over the source that `prepare_source` would prepare.

    It covers, for a path, the files (relative path, executable bit, bytes; links by their target); for an sdist, its
    declared sha256; for git, commit and subdirectory; and every patch, in order. Nothing is downloaded or executed.
    Raises UsageError when a file of the recipe cannot be read.
    """
    files = source_files(recipe.source.path) if isinstance(recipe.source, PathSource) else []
    return _digest(recipe, {name: _entry(name, file) for name, file in files})


def _digest(recipe: Recipe, files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(b"buildfarm source 1\n")
    match recipe.source:
        case PathSource():
            for name in sorted(files):
                digest.update(files[name])
        case SdistSource(sha256=sha256):
            digest.update(f"sdist {sha256.lower()}\n".encode())
        case GitSource(revision=revision, subdirectory=subdirectory):
            # Wheels of older versions of buildfarm are built again: their builds had only the folder.
            inside = f"{subdirectory} of the whole repository" if subdirectory else ""
            digest.update(f"git {revision} {inside}\n".encode())
        case WheelSource(project=project, version=version):
            digest.update(f"wheel {project} {version}\n".encode())
    for patch in recipe.patches:
        digest.update(f"patch {_sha256(patch)}\n".encode())
    return digest.hexdigest()


def _entry(name: str, file: Path) -> bytes:
    """A line of a tree's digest: kind, path, content. A path cannot contain NUL, so lines cannot collide."""
    if file.is_symlink():
        return b"link " + os.fsencode(name) + b"\0" + os.fsencode(file.readlink()) + b"\n"
    kind = b"exec " if file.stat().st_mode & stat.S_IXUSR else b"file "
    return kind + os.fsencode(name) + b"\0" + _sha256(file).encode() + b"\n"


def _sha256(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", Code.PATH_NOT_USABLE, where=str(file)) from None


def _tracked_files(top: Path) -> list[tuple[str, Path]]:
    """Relative path and file of everything in a verified checkout below `top`, except `.git`."""
    files = []
    for folder, folders, names in os.walk(top):
        # os.walk lists a link to a folder as a folder.
        links = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = [name for name in folders if name != ".git" and name not in links]
        files += [Path(folder, name) for name in [*names, *links] if name != ".git"]
    return sorted((file.relative_to(top).as_posix(), file) for file in files)


def _copy(files: list[tuple[str, Path]], target: Path, *, root: Path, top: Path | None = None) -> None:
    """Copy with modes 0644 or 0755, so that the umask of a checkout does not change the wheel.

    A link inside `top` (or `root`), or to a folder, stays a link; one from `top` to a file in `root` becomes a copy.
    """
    for name, file in files:
        end = file.resolve()
        if not end.is_relative_to(root.resolve()):
            sentence = f"the link leads out of the source tree, to {file.readlink()}, which no digest covers"
            hints = (
                "replace the link by what it leads to",
                "if that is in the same git repository, name the repository: git+URL#subdirectory=FOLDER",
            )
            raise UsageError(sentence, Code.SOURCE_UNSAFE, where=str(file), hints=hints)
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        inside = end.is_relative_to((top or root).resolve()) or (file.is_symlink() and end.is_dir())
        mode = (file.lstat() if inside else end.stat()).st_mode
        if stat.S_ISLNK(mode):
            copy.symlink_to(file.readlink())
        elif stat.S_ISREG(mode):
            shutil.copyfile(file, copy)
            copy.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
        else:
            sentence = "the link leads to something that is no file of the source"
            raise UsageError(sentence, Code.SOURCE_UNSAFE, where=str(file))


def fetch_sdist(source: SdistSource, *, cache: Path) -> Path:
    """Return the verified archive `<cache>/sdists/<sha256>/<file name>`, downloading it the first time.

    Raises UsageError when the index has no such source distribution, and MissingToolError when the index or the file
    cannot be reached, and when its digest is not the recipe's.
    """
    wanted = source.sha256.lower()
    folder = cache / "sdists"
    for kept in sorted((folder / wanted).glob("*")):
        if sha256_of(kept) == wanted:
            return kept
        kept.unlink()  # damaged on disk: the folder's name is the expected digest
    from builder.wheels.sources.index import fetch  # noqa: PLC0415 - loads slowly, and folders do not need it

    where = f"{source.project} {source.version}"
    location = replace(locate_sdist(source.project, source.version), sha256=wanted)
    return fetch(location, folder, kind=_KIND, where=where, who="the recipe has")


def locate_sdist(project: str, version: str) -> Location:
    """Where the index has the source distribution of a version, or of the newest version if `version` is empty.

    Raises UsageError when there is none, MissingToolError when the index cannot be reached.
    """
    from builder.wheels.sources.index import locate  # noqa: PLC0415 - loads slowly

    return locate(f"{project}=={version}" if version else project, _KIND, *_ANY_PYTHON)[0]


def unpack(archive: Path, target: Path) -> None:
    """Unpack a source distribution (.tar.gz) into the empty folder `target`, without its top folder.

    Files get mode 0644 or 0755. After an error, the caller deletes what was written. Raises UsageError if tarfile's
    filter `data` refuses a member: an absolute path or `..`, a link that leads out, a device. Also if there is no
    single top folder, if the archive exceeds a limit of `builder.wheelfile.limits`, and if it is not an archive.
    """
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as folder:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                _check_size(archive, tar)
                tar.extractall(folder, filter=_checked)  # noqa: S202 - the filter
        except tarfile.FilterError as error:
            raise _unsafe(archive, str(error)) from None
        except (tarfile.TarError, OSError, KeyError, *DAMAGE) as error:  # KeyError: a hard link to no member
            if getattr(error, "errno", None) in _OF_MACHINE:
                raise
            sentence = f"this is not a readable archive: {error}"
            raise UsageError(sentence, Code.FETCH_FAILED, where=archive.name) from None
        tops = list(Path(folder).iterdir())
        if len(tops) != 1 or tops[0].is_symlink() or not tops[0].is_dir():
            sentence = "a source distribution must contain exactly one top folder and nothing else"
            raise UsageError(sentence, Code.FETCH_FAILED, where=archive.name)
        for path in tops[0].iterdir():
            path.rename(target / path.name)
    for place, folders, files in os.walk(target):
        for link in (path for name in (*folders, *files) if (path := Path(place, name)).is_symlink()):
            if not Path(os.path.realpath(link)).is_relative_to(target.resolve()):
                raise _unsafe(archive, f"{link.relative_to(target)} is a link that leads out, to {link.readlink()}")


def _check_size(archive: Path, tar: tarfile.TarFile) -> None:
    """Read the members one by one, so that an archive bomb is found before its list fills the memory."""
    total = 0
    for count, member in enumerate(tar, start=1):
        total += member.size
        if count > limits.MAX_MEMBERS or total > limits.MAX_SOURCE_BYTES:
            gigabytes = limits.MAX_SOURCE_BYTES // 2**30
            raise _unsafe(archive, f"it unpacks to more than {gigabytes} GiB or {limits.MAX_MEMBERS} members")


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """A member as it is written: of its mode, only whether its owner may execute it, and the time of now."""
    safe = tarfile.data_filter(member, folder)
    if member.isdir():
        return safe
    mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
    return safe.replace(mode=mode, mtime=None, deep=False)  # type: ignore[arg-type]  # None: it is not set


def _unsafe(archive: Path, why: str) -> UsageError:
    sentence, hint = f"no file of the archive is used: {why}", "inspect the archive before you trust it"
    return UsageError(sentence, Code.SOURCE_UNSAFE, where=archive.name, hints=[hint])
