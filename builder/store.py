"""The store: finished builds by digest, proofs by wheel, work in progress. Things appear in it whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from builder.errors import FarmError
from builder.process import reap_orphans, stop_if_ending
from builder.proof import Proof


def default_store() -> Path:
    """Where the store is unless `--store` or BUILDFARM_STORE says otherwise."""
    if chosen := os.environ.get("BUILDFARM_STORE"):
        return Path(chosen).expanduser().absolute()
    return user_cache_path("buildfarm")


def digest_of(parts: object) -> str:
    """sha256 over the canonical JSON of plain data, hex."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def job_name(digest: str) -> str:
    """The name of a build's lock, scratch folder and processes: short, since paths and variables carry it."""
    return digest[:16]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file aside, fsync, and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file's contents, or a folder's entries, last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Stored:
    """A finished build as the store holds it."""

    digest: str
    wheel: Path
    record: dict[str, Any]


class Store:
    """A folder that is the farm's memory; delete it to start over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("builds", "proofs", "work", "locks", "logs", "envs", "sources"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def find(self, digest: str) -> Stored | None:
        """The finished build of this digest, or None. A record whose wheel is gone counts as none."""
        folder = self.root / "builds" / digest
        try:
            record = json.loads((folder / "build.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        wheel = folder / str(record.get("wheel", ""))
        return Stored(digest, wheel, record) if wheel.is_file() else None

    def add(self, digest: str, wheel: Path, record: dict[str, Any]) -> Stored:
        """Take a finished wheel in, under the digest's lock: copied aside, synced, renamed into place as one folder."""
        final = self.root / "builds" / digest
        aside = self.root / "work" / job_name(digest) / "finished"
        aside.mkdir(parents=True)
        shutil.copyfile(wheel, aside / wheel.name)
        sync(aside / wheel.name)
        write_whole(aside / "build.json", json.dumps({**record, "wheel": wheel.name}, indent=1).encode())
        if final.exists():  # a broken leftover: `find` said there is no whole build here
            shutil.rmtree(final)
        aside.rename(final)
        sync(final.parent)
        return Stored(digest, final / wheel.name, {**record, "wheel": wheel.name})

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold a named lock across processes; yields False when `wait` is false and another holds it.

        Waiting ends with the farm (raises Interrupted).
        The kernel drops it when its owner dies, so a killed run never blocks the next.
        """
        lock = FileLock(self.root / "locks" / f"{name}.lock")
        while True:
            try:
                lock.acquire(timeout=0.5 if wait else 0)
                break
            except Timeout:
                if not wait:
                    yield False
                    return
                stop_if_ending()
        try:
            yield True
        finally:
            lock.release()

    @contextmanager
    def work(self, name: str) -> Iterator[Path]:
        """An empty scratch folder, gone afterwards, under the lock of its name.

        What a killed run left in it, and the compilers it left running, are cleared first.
        """
        with self.lock(name):
            folder = self._cleared(name)
            folder.mkdir(parents=True)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def mark(self, name: str) -> str:
        """What the programs of a job carry, so that they are known after a kill; two stores never share one."""
        return f"{digest_of(str(self.root.resolve()))[:12]}/{name}"

    def clear_abandoned(self) -> None:
        """Delete the scratch of runs that were killed and whose work nobody will take up under the same name."""
        for folder in (self.root / "work").iterdir():
            with self.lock(folder.name, wait=False) as mine:
                if mine:
                    self._cleared(folder.name)

    def _cleared(self, name: str) -> Path:
        reap_orphans(self.mark(name))
        folder = self.root / "work" / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def log(self, name: str) -> Path:
        """The log file of a build, by its readable name."""
        return self.root / "logs" / f"{name}.log"

    def save_proofs(self, proofs: Sequence[Proof]) -> None:
        """Keep proofs; a later proof of the same wheel, cell and check replaces the earlier."""
        for wheel in {proof.wheel for proof in proofs}:
            with self.lock(f"proofs-{wheel[:16]}"):
                kept = {(str(p.cell), p.check): p for p in self.proofs(wheel)}
                kept |= {(str(p.cell), p.check): p for p in proofs if p.wheel == wheel}
                data = [kept[key].to_json() for key in sorted(kept)]
                write_whole(self.root / "proofs" / f"{wheel}.json", json.dumps(data, indent=1).encode())

    def proofs(self, wheel: str) -> list[Proof]:
        """All proofs of a wheel by its sha256; empty if there are none."""
        try:
            entries = json.loads((self.root / "proofs" / f"{wheel}.json").read_bytes())
            return [Proof.from_json(entry) for entry in entries]
        except (OSError, ValueError, KeyError, TypeError, FarmError):  # none, or of another release: prove anew
            return []
