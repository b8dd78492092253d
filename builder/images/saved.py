"""A saved folder: what `buildfarm store save` took from the network for a plan, and how `--from DIR` reads it.

`saved.json` lists the other files with their sha256. A file with a sha256 in its path never changes, so any program can
copy the folder to a disk or a bucket, and a later save adds what is new:

    files/SHA256/NAME           packages; the pages in `index/` link to them
    images/SHA256               layers and settings of images
    pythons/RELEASE/NAME        archives of Pythons, as on a mirror of python-build-standalone
    store/...                   files of the store: sources, locked versions, symbols of torch
"""

import hashlib
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from builder.errors import Code, MissingToolError, UsageError
from builder.formats import sha256_of
from builder.gate.amounts import counted, join_names
from builder.images.network import saved_folder
from builder.store import Store, write_atomic
from builder.untrusted import JsonError, control_character, parts_of, read_json

#: The list of the files, and its signature by `ssh-keygen`.
LIST, SIGNATURE = "saved.json", "saved.json.sig"
#: Variable with a file of trusted keys (`ALLOWED SIGNERS` in the manual of ssh-keygen): the list must be signed.
SIGNERS = "BUILDFARM_SIGNERS"
#: What the signature is for, and what a git checkout in the store is saved as.
NAMESPACE, ARCHIVE = "buildfarm", ".tar"
#: What a saved folder gives to a store. No proof and no finished build: they would be believed.
_OF_STORE = ("store/envs/", "store/inventories/", "store/sources/")
#: How the names of images begin that buildfarm makes.
OWN = "buildfarm/"
#: Bytes of the list, which has some hundred for each file.
_MOST = 1 << 30


@dataclass(frozen=True)
class ArchiveEntry:
    """An entry of the archive that `docker save` writes."""

    name: str
    kind: str  # one character, as in `tarfile`
    target: str = ""  # of a link
    content: str = ""  # of a file: its path in the folder


@dataclass(frozen=True)
class Image:
    """An image, and the archive that contains it."""

    id: str  # that of the engine
    archive: str  # a key of `Saved.archives`


@dataclass
class Saved:
    """The content of `saved.json`."""

    #: The cells in which wheels can be tested, by executor.
    cells: dict[str, list[str]] = field(default_factory=dict)
    #: sha256 of each package by its file name, by the folder of its index.
    packages: dict[str, dict[str, str]] = field(default_factory=dict)
    #: By the name by which a Dockerfile or a container knows the image.
    images: dict[str, Image] = field(default_factory=dict)
    archives: dict[str, list[ArchiveEntry]] = field(default_factory=dict)
    #: sha256 and bytes of each file, by its path.
    files: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Saved":
        """Read the list of a folder, and check its signature. Raises UsageError."""
        path = folder / LIST
        try:
            found = read_json(path, _parse, limit=_MOST)
        except (FileNotFoundError, NotADirectoryError):
            hint = f"`buildfarm store save {folder}` writes such a folder on a machine with a network"
            sentence = f"this is no saved folder: it has no {LIST}"
            raise UsageError(sentence, Code.NO_SUCH_FILE, where=str(folder), hints=[hint]) from None
        except (JsonError, OSError) as error:
            raise _damaged(path, error) from None
        _check_signature(folder)
        return found

    def verified(self, folder: Path, name: str, *, size_only: bool = False) -> Path:
        """The path of a file. Raises UsageError if it is missing, or if its size or its content is not as listed."""
        path, (sha256, size) = folder / name, self.files.get(name, ("", -1))
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                says = f"says {size}" if name in self.files else "does not have it"
                raise _damaged(path, f"it has {found.st_size} bytes, and {LIST} {says}")
            if not size_only and sha256_of(path) != sha256:
                raise _damaged(path, f"its sha256 is not {sha256}, as {LIST} says")
        except OSError as error:
            raise _damaged(path, error) from None
        return path

    def names(self, folder: Path) -> list[str]:
        """The files of the list, and each page of an index that uv would find but that is not in the list."""
        pages = (path.relative_to(folder).as_posix() for path in folder.glob("index/*/*/index.html"))
        return list(dict.fromkeys((*self.files, *sorted(pages))))

    def damage(self, folder: Path) -> Iterator[UsageError]:
        """The errors of all files."""
        for name in self.names(folder):
            try:
                self.verified(folder, name)
            except UsageError as error:
                yield error

    def to_json(self) -> bytes:
        """The text of `saved.json`."""
        return _adapter().dump_json(self, indent=1)


@cache
def _adapter() -> TypeAdapter[Saved]:
    return TypeAdapter(Saved)


def _parse(data: object) -> Saved:
    """What a list says. Raises ValueError for a name that is no path below a folder, KeyError for what it lacks."""
    try:
        found = _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the text'}: {first['msg']}") from None
    for name in chain(found.files, found.packages, *found.packages.values()):
        if not name or control_character(name) or "/".join(parts_of(name)) != name:
            raise ValueError(f"{name!r} is no path below the folder")
    for entry in chain.from_iterable(found.archives[image.archive] for image in found.images.values()):
        _ = entry.content and found.files[entry.content]
    return found


def _damaged(path: Path, why: str | Exception) -> UsageError:
    if isinstance(why, PermissionError):
        hint = "its owner lets all users read the folder with `chmod -R a+rX`"
        return UsageError("the saved file cannot be read", Code.PATH_NOT_USABLE, where=str(path), hints=[hint])
    hint = "delete the file, and run `buildfarm store save` again on a machine with a network"
    reason = why.strerror if isinstance(why, OSError) else why
    return UsageError(f"the saved file is damaged: {reason}", Code.SOURCE_DIFFERS, where=str(path), hints=[hint])


def use_saved(store: Store) -> None:
    """Fill the store from the saved folder, if there is one: sources, locked versions and symbols that it lacks.

    Raises UsageError for a list or a signature that is not right, and for a file that is missing or damaged. uv checks
    packages by the pages of the indexes when it reads them, and Pythons, `load_image` images; here, only their sizes
    are looked at.
    """
    if not (folder := saved_folder()):
        return
    saved = Saved.read(folder)
    for name in saved.names(folder):
        path = saved.verified(folder, name, size_only=not name.startswith("index/"))
        kept = store.root / name.removeprefix("store/").removesuffix(ARCHIVE)
        if not name.startswith(_OF_STORE) or kept.exists():
            continue
        saved.verified(folder, name)
        if not name.endswith(ARCHIVE):
            write_atomic(kept, path.read_bytes())
            continue
        with store.work(f"saved-{kept.name}") as aside:
            try:
                with tarfile.open(path, "r:") as archive:
                    # `data` changes targets of links, and git would notice; both refuse a file behind such a link.
                    archive.extractall(  # noqa: S202 - each member has a filter
                        aside / "tree",
                        filter=lambda one, to: (tarfile.tar_filter if one.issym() else tarfile.data_filter)(one, to),
                    )
            except (tarfile.TarError, KeyError) as error:  # KeyError: a hard link to no member
                raise _damaged(path, error) from None
            if not kept.exists():  # another process may have been first
                kept.parent.mkdir(parents=True, exist_ok=True)
                (aside / "tree").rename(kept)


def check_cells(cells: Collection[str], executor: str) -> None:
    """Raise MissingToolError if there is a saved folder which lacks what a test in one of these cells needs."""
    if folder := saved_folder():
        known = Saved.read(folder).cells.get(executor, ())
        if lacking := sorted(set(cells).difference(known)):
            raise MissingToolError(
                f"the saved folder lacks {counted(len(lacking), 'cell')} for the executor {executor}:"
                f" {join_names(lacking)}",
                Code.NO_CELL_HERE,
                where=str(folder),
                hints=[
                    f"run `buildfarm store save {folder} --executor {executor}` with these cells on a machine with a"
                    " network",
                    f"the folder has {join_names(known) if known else 'no cell for this executor'}",
                ],
            )


def _check_signature(folder: Path) -> None:
    """Raise UsageError if the list is not signed by a key in the file SIGNERS, or if its signature is of another text.

    Without SIGNERS, a signature is checked but may be by any key.
    """
    signers, signature = os.environ.get(SIGNERS), folder / SIGNATURE
    if not signers and not signature.exists():
        return

    def keygen(*arguments: str | Path) -> str:
        with (folder / LIST).open("rb") as stdin:
            argv = ["ssh-keygen", "-Y", *arguments, "-s", signature]
            try:
                done = subprocess.run(argv, stdin=stdin, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise no_keygen() from None
        if done.returncode:
            sentence = (
                f"the list is not signed by a key in {signers}" if signers else "the signature is not of this list"
            )
            why = (done.stderr.strip().splitlines() or [done.stdout.strip()])[-1]
            raise UsageError(f"{sentence}: {why}", Code.SOURCE_DIFFERS, where=str(folder / LIST))
        return done.stdout

    if signers:
        signer = keygen("find-principals", "-f", signers).splitlines()[0]
        keygen("verify", "-f", signers, "-I", signer, "-n", NAMESPACE)
    else:
        keygen("check-novalidate", "-n", NAMESPACE)


def no_keygen() -> MissingToolError:
    """The error on a machine that can neither sign nor check a signature."""
    sentence = "the list of a saved folder cannot be signed or checked: there is no ssh-keygen on PATH"
    return MissingToolError(sentence, Code.PACKAGE_MISSING, hints=["install openssh-client"])


def save_images(names: Sequence[str], folder: Path) -> list[ArchiveEntry]:
    """Write images that the engine has, by their names or ids, into a folder; return the entries of their archive.

    Images share the files that they have in common. Raises MissingToolError if the engine refuses.
    """
    members = list[ArchiveEntry]()
    (folder / "images").mkdir(parents=True, exist_ok=True)
    argv = ["docker", "save", *names]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        with suppress(tarfile.ReadError), tarfile.open(fileobj=program.stdout, mode="r|") as archive:
            for entry in archive:
                content = ""
                if entry.isreg() and (stream := archive.extractfile(entry)):
                    content = f"images/{_keep(stream, folder / 'images')}"
                members.append(ArchiveEntry(entry.name, entry.type.decode(), entry.linkname, content))
        _, errors = program.communicate()
    if program.returncode:
        raise _refused("saved", errors)
    return members


def _keep(stream: IO[bytes], folder: Path) -> str:
    """Write a stream to a file that is named by its sha256, which is returned."""
    aside, digest = folder / f".new.{os.getpid()}", hashlib.sha256()
    try:
        with aside.open("wb") as out:
            while block := stream.read(1 << 20):
                digest.update(block)
                out.write(block)
        aside.rename(folder / digest.hexdigest())
    finally:
        aside.unlink(missing_ok=True)
    return digest.hexdigest()


def load_image(name: str, is_there: Callable[[str], object]) -> str | None:
    """Give an image of the saved folder to the engine, and return its id; None if the folder does not have it.

    `is_there` tells of an id whether the engine has the image: a base image has no name after a load.
    Raises UsageError for a damaged file, MissingToolError if the engine refuses the image.
    """
    folder = saved_folder()
    saved = Saved.read(folder) if folder else Saved()
    if folder is None or name not in saved.images:
        return None
    image = saved.images[name]
    if not name.startswith(OWN) and is_there(image.id):
        return image.id
    entries = [(one, one.content and saved.verified(folder, one.content)) for one in saved.archives[image.archive]]
    argv = ["docker", "load", "--quiet"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as program:
        with suppress(BrokenPipeError), tarfile.open(fileobj=program.stdin, mode="w|") as archive:
            for member, path in entries:
                entry = tarfile.TarInfo(member.name)
                entry.type, entry.linkname = member.kind.encode(), member.target
                if not path:
                    archive.addfile(entry)
                    continue
                entry.size = path.stat().st_size
                with path.open("rb") as stream:
                    archive.addfile(entry, stream)
        _, errors = program.communicate()
    if program.returncode:
        raise _refused("loaded", errors)
    return image.id


def _refused(verb: str, errors: bytes) -> MissingToolError:
    why = " ".join(errors.decode(errors="replace").split()).removeprefix("Error response from daemon: ")
    return MissingToolError(f"images cannot be {verb}: {why}", Code.ENGINE_NOT_ANSWERING, where="docker")
