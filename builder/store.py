"""The store: a folder with finished builds, proofs, environments, logs, locks and scratch folders.

Finished builds and proofs are written under a temporary name and renamed, so no reader sees a partial one.
"""

import ctypes
import errno
import fcntl
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

from filelock import FileLock, Timeout

from builder.formats import digest_of, sha256_of
from builder.log import print_warning
from builder.process import kill_orphans, raise_if_interrupted
from builder.proof import Proof, proofs_of
from builder.records import BuildRecord
from builder.untrusted import MAX_OWN_JSON, known_json, remove_tree, split_url, text

#: The file that every store has: it also tells backups to leave the folder out (Cache Directory Tagging).
MARK = "CACHEDIR.TAG"

#: For short paths: on disk, where /tmp is often in memory, and present on every Linux (FHS 3.0, 5.15). Every user can
#: write there, so what is found there must belong to this one.
ROOT = Path("/var/tmp")  # noqa: S108
#: How the name of a folder in `envs` begins that keeps the bytecode of an environment's packages.
BYTECODE = "bytecode-"


def work_name(digest: str) -> str:
    """Return the short name of a build's lock, scratch folder and owner: the first 16 digits of its digest."""
    return digest[:16]


def project_key(folder: Path) -> str:
    """Return the name of a project in the store, by the folder of its recipe: other projects use the store too."""
    return digest_of([str(folder.resolve())])[:16]


def holder(path: Path) -> str:
    """Return who has locked a file or folder, as in `process 4711 in /home/me/ops`."""
    with suppress(OSError):  # without /proc, or in the container of another process
        inode = f":{path.stat().st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():  # 1: FLOCK ADVISORY WRITE 4711 fe:00:1234 0 EOF
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and place.endswith(inode):
                return f"process {pid} in {Path('/proc', pid, 'cwd').readlink()}"
    return "another buildfarm process"


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, sync it to disk, and rename it into place.

    The temporary name is unique, so that threads and processes may write the same file at the same time; the last
    rename wins. Raises OSError, which names `path`, and leaves the old file as it is if writing fails.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(path)
    except OSError as error:  # that of a write has no name: the disk is full
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_if_changed(path: Path, data: bytes) -> None:
    """Replace a file atomically, unless it has this content already."""
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)


def local_path(place: str) -> Path | None:
    """The path that an option or argument names, also as a URL `file://…`; None for another URL."""
    if place.startswith("file://"):
        return Path(unquote(split_url(place).path))
    return None if "://" in place else Path(place)


def remove_temporary_files(folder: Path) -> None:
    """Delete temporary files of `write_atomic` in a folder whose process, the last part of their name, is gone."""
    for temporary in folder.glob(".*.*"):
        pid = temporary.name.rpartition(".")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Sync a file's contents, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: Path) -> None:
    """Sync the file system of a path to disk: for thousands of files this is faster than to sync each."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "cannot be synced", str(path))
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class StoredBuild:
    """A finished build as the store keeps it."""

    #: The build's name in the store.
    digest: str
    #: The wheel's path in the store.
    wheel: Path
    #: How the build went.
    record: BuildRecord
    #: Of the wheel when it was stored; empty in stores of earlier versions.
    sha256: str = ""


def _flocked(descriptor: int, kind: int) -> bool:
    """Whether an open folder could be locked at once (flock)."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Store:
    """The folder of the store. A user may delete it between runs; the next run builds everything again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("builds", "proofs", "work", "locks", "logs", "envs", "sources", "runs"):
            (root / name).mkdir(parents=True, exist_ok=True)
        if not (root / MARK).exists():  # backups leave the folder out, and so do builds of a source around it
            (root / MARK).write_text("Signature: 8a477f597d28d172789f06886806bc55\n")

    def hold(self) -> None:
        """Keep `store prune` from deleting, as long as this object exists. Waits while it deletes."""
        descriptor = os.open(self.root / "locks", os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        while not _flocked(descriptor, fcntl.LOCK_SH):
            raise_if_interrupted()
            time.sleep(0.02)

    @contextmanager
    def alone(self) -> Iterator[str]:
        """Let no other process hold the store while the body runs; yield which one holds it already, or ""."""
        descriptor = os.open(self.root / "locks", os.O_RDONLY)
        try:
            yield "" if _flocked(descriptor, fcntl.LOCK_EX) else holder(self.root / "locks")
        finally:
            os.close(descriptor)

    def use(self, target: str) -> None:
        """Note that a path of the store is used now: `store prune` deletes what was not."""
        with suppress(OSError):
            os.utime(self.root / target)

    def last_use(self, target: str) -> datetime:
        """When a path of the store was used last, or written."""
        seconds = 0.0
        with suppress(FileNotFoundError):
            seconds = (self.root / target).lstat().st_mtime
        return datetime.fromtimestamp(seconds, UTC)

    def delete(self, target: str) -> None:
        """Delete a path of the store."""
        path = self.root / target
        with self.work("delete") as folder, suppress(FileNotFoundError):
            path.rename(folder / path.name)  # from here on, nobody finds a half-deleted path

    def take(self, digest: str) -> StoredBuild | None:
        """Use a build and return it, or None if it is not finished or if its wheel has changed on disk."""
        self.use(f"builds/{digest}")
        found = self.find(digest)
        if found is None:
            return None
        if found.sha256 and sha256_of(found.wheel) != found.sha256:
            print_warning(
                f"the stored wheel {found.wheel.name} is damaged: its sha256 is not {found.sha256}; it is built again"
            )
            return None
        return found

    def find(self, digest: str) -> StoredBuild | None:
        """The finished build of this digest, or None. Without its wheel or a readable record it counts as none."""
        folder = self.root / "builds" / digest
        stored = known_json(
            folder / "build.json",
            lambda data: StoredBuild(
                digest, folder / text(data["wheel"]), BuildRecord.from_json(data), text(data.get("sha256", ""))
            ),
        )
        return stored if stored and stored.wheel.is_file() else None

    def add(self, digest: str, wheel: Path, record: BuildRecord) -> StoredBuild:
        """Copy a finished wheel and its record into the store as one folder. The caller holds the digest's lock."""
        final = self.root / "builds" / digest
        temporary = self.root / "work" / work_name(digest) / "finished"
        temporary.mkdir(parents=True)
        shutil.copyfile(wheel, temporary / wheel.name)
        sync(temporary / wheel.name)
        data = record.to_json() | {"wheel": wheel.name, "sha256": (sha256 := sha256_of(temporary / wheel.name))}
        write_atomic(temporary / "build.json", json.dumps(data, indent=1).encode())
        remove_tree(final)  # an incomplete or damaged build: `take` returned None
        temporary.rename(final)
        sync(final.parent)
        return StoredBuild(digest, final / wheel.name, record, sha256)

    @contextmanager
    def lock(self, name: str, *, wait: bool = True, on_wait: Callable[[str], object] | None = None) -> Iterator[bool]:
        """Hold a named lock, which excludes other processes too. Yield whether it is held.

        An absolute path as `name` is a lock beside that path, which processes with other stores share.
        Without `wait`, yield False if the lock is taken. `on_wait` gets the `holder` of a lock that is taken. The
        kernel releases the lock when its process dies, so a killed run never blocks the next. Raises Interrupted if
        buildfarm is stopped during the wait.
        """
        lock = FileLock(self.root / "locks" / f"{name}.lock", thread_local=False)  # another thread may release it
        while True:
            try:
                lock.acquire(timeout=0.5 if wait else 0)
                break
            except Timeout:
                if not wait:
                    yield False
                    return
                if on_wait:
                    on_wait(holder(Path(lock.lock_file)))
                    on_wait = None
                raise_if_interrupted()
        try:
            yield True
        finally:
            lock.release()

    @contextmanager
    def work(self, name: str, on_wait: Callable[[str], object] | None = None) -> Iterator[Path]:
        """Yield an empty scratch folder under the lock of its name, and delete it afterwards; `on_wait` as in `lock`.

        Files and processes that a killed run left under this name are removed first.
        """
        with self.lock(name, on_wait=on_wait):
            folder = self._cleared(name)
            folder.mkdir(parents=True)
            try:
                yield folder
            finally:
                remove_tree(folder)

    def owner(self, name: str) -> str:
        """Return the owner for processes and containers of this name. Two stores never share an owner."""
        return f"{digest_of(str(self.root.resolve()))[:12]}/{name}"

    def clear_abandoned(self) -> None:
        """Delete the scratch folders and kill the processes of killed runs; live runs hold the lock of their name."""
        for folder in (self.root / "work").iterdir():
            with self.lock(folder.name, wait=False) as held:
                if held:
                    self._cleared(folder.name)

    def _cleared(self, name: str) -> Path:
        """Remove what a killed run left under this name; return the path of the scratch folder, which is gone."""
        kill_orphans(self.owner(name))
        folder = self.root / "work" / name
        remove_tree(folder)
        return folder

    def log(self, name: str, project: Path | None = None) -> Path:
        """Return the path of the log of a build or step of the project in a folder; None: of the whole store."""
        return self.root / "logs" / f"{name}{f'-{project_key(project)}' if project else ''}.log"

    def save_proofs(self, proofs: Sequence[Proof], *, keep_others: bool = False) -> list[Proof]:
        """Write proofs to the store; a proof replaces the earlier one of the same wheel, cell and check.

        "Not run" does not replace a verdict with the same basis; with `keep_others`, also no proof with another basis.
        Return the proofs that were written.
        """
        saved: list[Proof] = []
        for wheel in {proof.wheel for proof in proofs}:
            with self.lock(f"proofs-{wheel[:16]}"):
                kept = {(str(p.cell), p.check): p for p in self.proofs(wheel)}
                ran = {key: p.basis for key, p in kept.items() if p.has_run}
                new = {(str(p.cell), p.check): p for p in proofs if p.wheel == wheel}
                new = {key: p for key, p in new.items() if p.has_run or ran.get(key) != p.basis}
                if keep_others:
                    new = {key: p for key, p in new.items() if p.has_run or kept.get(key, p).basis == p.basis}
                saved += new.values()
                kept |= new
                data = [kept[key].to_json() for key in sorted(kept)]
                write_atomic(self.root / "proofs" / f"{wheel}.json", json.dumps(data, indent=1).encode())
        return saved

    def proofs(self, wheel: str) -> list[Proof]:
        """Return all proofs of a wheel, by its sha256; none if their file is missing or unreadable."""
        self.use(f"proofs/{wheel}.json")
        return known_json(self.root / "proofs" / f"{wheel}.json", proofs_of, limit=MAX_OWN_JSON) or []
