"""Writers of one index in trouble: kill -9 of `publish` while readers read, and several servers on one folder."""

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event

from builder.commands.index.publish import PublishOutcome, publish_wheels
from builder.publish.index.levels import Level
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.store import Store
from tests.fixtures.killed import begin, context_of, enough, seeded
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import checked

#: Kills of `publish`; BUILDFARM_KILLS=50 makes a longer test.
KILLS = int(os.environ.get("BUILDFARM_KILLS", "15"))
SIZE = 4_000_000


def copy_slowly(source: Path, to: Path) -> None:
    """Copy a file as a slow disk does, so that kills hit the copy."""
    with source.open("rb") as reading, to.open("wb") as writing:
        while chunk := reading.read(SIZE // 16):
            writing.write(chunk)
            writing.flush()
            time.sleep(0.01)


def publish(root: Path, store: Path, wheels: Sequence[Path], begun: Connection) -> None:
    """`buildfarm publish --require none`, which starts faster without the command line."""
    shutil.copyfile = copy_slowly  # type: ignore[assignment]
    begun.send(None)
    results = publish_wheels(Repository(Folder(root)), wheels, Store(store), [Level.NONE])
    assert all(result.outcome is not PublishOutcome.REFUSED for result in results)


def read_until(stop: Event, root: Path) -> int:
    """Compare every wheel that a page lists with its hash, again and again; return how many were read."""
    repository, known, rounds = Repository(Folder(root)), set[str](), 0
    while not stop.is_set() or not rounds:
        rounds += 1
        for path in repository.paths():
            for project in repository.projects_of(path):
                for entry in repository.listed(project, path):
                    if entry.path not in known:
                        assert hashlib.sha256((root / entry.path).read_bytes()).hexdigest() == entry.sha256
                        metadata = (root / f"{entry.path}.metadata").read_bytes()
                        assert hashlib.sha256(metadata).hexdigest() == entry.metadata_sha256
                        known.add(entry.path)
        time.sleep(0.002)
    return len(known)


def test_a_killed_publish_leaves_nothing_half_seen(tmp_path: Path) -> None:
    seed, context = seeded(), context_of(__name__)
    root, store = tmp_path / "index", tmp_path / "store"
    repository = Repository(Folder(root))

    wheels: list[Path] = []

    def start(kill: int) -> BaseProcess:
        if kill % 2 == 0:  # the next `publish` gets the same wheels: it must not keep half a file of a killed one
            shutil.rmtree(tmp_path / "wheels", ignore_errors=True)
            files = {"x.bin": seed.randbytes(SIZE)}
            wheels[:] = [
                pure_wheel(tmp_path / "wheels", f"my_ext{one}", f"{kill}.0+cu13{one}", files) for one in range(2)
            ]
        return begin(context, publish, root, store, wheels)[0]

    first, started = start(0), time.monotonic()
    first.join()
    duration = time.monotonic() - started
    kills, interrupted, stop = 0, 0, Event()
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read_until, stop, root)
        try:
            while not enough(kills, interrupted, wanted=KILLS, of=KILLS // 5 + 1):
                kills += 1
                process = start(kills)
                time.sleep(seed.random() * duration)
                process.kill()
                process.join()
                interrupted += bool(repository.objects.names("pending"))
                if kills % 3 == 0:  # the other kills hit an index with more than one interrupted change
                    assert checked(repository).faults == ()
            start(kills + kills % 2 + 2).join()
        finally:
            stop.set()
        assert reader.result() > 2
    check = checked(repository)
    assert check.faults == ()
    assert checked(repository).finished == ()
    listed = {entry.filename for project in repository.projects() for entry in repository.listed(project)}
    assert {wheel.name for wheel in wheels} <= listed
    print(f"{kills} kills, {interrupted} during a change, {check.wheels} wheels")
