"""A saved folder: what `buildfarm store save` took from the network for a plan, and how `--from DIR` reads it.

`saved.json` lists the other files with their sha256. A file with a sha256 in its path never changes, so any program can
copy the folder to a disk or a bucket, and a later save adds what is new:

    files/SHA256/NAME           packages; the pages in `index/` link to them
    images/SHA256               layers and settings of images
    pythons/RELEASE/NAME        archives of Pythons, as on a mirror of python-build-standalone
    store/...                   files of the store: sources, locked versions, symbols of torch
"""

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from builder.errors import Code, MissingToolError, UsageError
from builder.formats import sha256_of
from builder.gate.amounts import counted, join_names
from builder.images.network import saved_folder
from builder.store import Store, write_atomic
from builder.untrusted import MAX_OWN_JSON, JsonError, control_character, parts_of, read_json

#: The list of the files, and its signature by `ssh-keygen`.
LIST, SIGNATURE = "saved.json", "saved.json.sig"
#: Variable with a file of trusted keys (`ALLOWED SIGNERS` in the manual of ssh-keygen): the list must be signed.
SIGNERS = "BUILDFARM_SIGNERS"
#: What the signature is for, and what a git checkout in the store is saved as.
NAMESPACE, ARCHIVE = "buildfarm", ".tar"
#: For a file and for a link: `data` changes targets of links, which git would notice. Both write nothing behind one.
_FILTERS = (tarfile.data_filter, tarfile.tar_filter)
#: How the names of images begin that buildfarm makes.
OWN = "buildfarm/"


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
            found = read_json(path, _parse, limit=MAX_OWN_JSON)
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
        path, (sha256, size) = folder / name, self.files.get(name, ("", "nothing"))
        try:
            if (found := path.stat().st_size) != size or not path.is_file():
                raise _damaged(path, f"it has {found} bytes, and {LIST} says {size}")
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
        return json.dumps(asdict(self), indent=1).encode()


def _parse(data: object) -> Saved:
    """What a list says. Raises ValueError for a name that is no path below a folder, KeyError for what it lacks."""
    found = TypeAdapter(Saved).validate_python(data)
    for name in chain(found.files, found.packages, *found.packages.values()):
        if not name or control_character(name) or "/".join(parts_of(name)) != name:
            raise ValueError(f"{name!r} is no path below the folder")
    _ = [found.archives[image.archive] for image in found.images.values()]
    return found


def _damaged(path: Path, why: str | Exception) -> UsageError:
    if isinstance(why, PermissionError):
        hint = "its owner lets all users read the folder with `chmod -R a+rX`"
        return UsageError("the saved file cannot be read", Code.PATH_NOT_USABLE, where=str(path), hints=[hint])
    hint = "delete the file, and run `buildfarm store save` again on a machine with a network"
    reason = why.strerror if isinstance(why, OSError) else " ".join(str(why).partition(" [type=")[0].split())
    return UsageError(f"the saved file is damaged: {reason}", Code.SOURCE_DIFFERS, where=str(path), hints=[hint])


def use_saved(store: Store) -> None:
    """Fill the store from the saved folder, if there is one: sources, locked versions and symbols that it lacks.

    Raises UsageError for a list or a signature that is not right, and for a file that is missing or damaged. uv checks
    packages, by the pages of the indexes, and Pythons, `load_image` images: here, only their sizes are looked at.
    """
    if not (folder := saved_folder()):
        return
    saved = Saved.read(folder)
    for name in saved.names(folder):
        kept = store.root / name.removeprefix("store/").removesuffix(ARCHIVE)
        # No proofs and no finished builds, which would be believed.
        wanted = name.startswith(("store/envs/", "store/inventories/", "store/sources/")) and not kept.exists()
        path = saved.verified(folder, name, size_only=not (wanted or name.startswith("index/")))
        if not wanted:
            continue
        if not name.endswith(ARCHIVE):
            write_atomic(kept, path.read_bytes())
            continue
        with store.work(f"saved-{kept.name}") as aside:
            try:
                with tarfile.open(path, "r:") as archive:
                    archive.extractall(aside / "tree", filter=lambda one, to: _FILTERS[one.issym()](one, to))  # noqa: S202
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
            why = f"the folder lacks {counted(len(lacking), 'cell')} for the executor {executor}: {join_names(lacking)}"
            save = f"`buildfarm store save {folder} --executor {executor}` adds such cells where there is a network"
            has = f"the folder has {join_names(known) if known else 'no cell for this executor'}"
            raise MissingToolError(why, Code.NO_CELL_HERE, where=str(folder), hints=[save, has])


def _check_signature(folder: Path) -> None:
    """Raise UsageError if the list is not signed by a key in the file SIGNERS, or if its signature is of another text.

    Without SIGNERS, a signature is checked but may be by any key.
    """
    signers, signature = os.environ.get(SIGNERS), folder / SIGNATURE
    if not signers and not signature.exists():
        return

    def answer(*arguments: str | Path) -> str:
        done = keygen(*arguments, "-s", signature, given=(folder / LIST).read_bytes())
        if done.returncode:
            of = f"list is not signed by a key in {signers}" if signers else "signature is not of this list"
            why = ((done.stderr or done.stdout).decode(errors="replace").splitlines() or [""])[-1]
            hints = [f"`buildfarm store save {folder} --sign KEY` signs it; {SIGNERS} names a file with the public key"]
            raise UsageError(f"the {of}: {why}", Code.SOURCE_DIFFERS, where=str(folder / LIST), hints=hints)
        return done.stdout.decode()

    if signers:
        signer = answer("find-principals", "-f", signers).splitlines()[0]
        answer("verify", "-f", signers, "-I", signer, "-n", NAMESPACE)
    else:
        answer("check-novalidate", "-n", NAMESPACE)


def keygen(*arguments: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The answer of `ssh-keygen -Y`, which reads `given`. Raises MissingToolError if there is no such program."""
    try:
        return subprocess.run(["ssh-keygen", "-Y", *arguments], input=given, capture_output=True, check=False)
    except FileNotFoundError:
        sentence = "the list of a saved folder cannot be signed or checked: there is no ssh-keygen on PATH"
        raise MissingToolError(sentence, Code.PACKAGE_MISSING, hints=["install openssh-client"]) from None


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
    if not (folder := saved_folder()) or name not in (saved := Saved.read(folder)).images:
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
                with Path(path or os.devnull).open("rb") as stream:
                    entry.size = os.fstat(stream.fileno()).st_size
                    archive.addfile(entry, stream)
        _, errors = program.communicate()
    if program.returncode:
        raise _refused("loaded", errors)
    return image.id


def _refused(verb: str, errors: bytes) -> MissingToolError:
    why = " ".join(errors.decode(errors="replace").split()).removeprefix("Error response from daemon: ")
    return MissingToolError(f"images cannot be {verb}: {why}", Code.ENGINE_NOT_ANSWERING, where="docker")
