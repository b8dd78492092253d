"""What the store holds, with sizes, last use and owners."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.storage.inventory import folder_size, store_items
from builder.storage.item import Kind
from builder.store import Store
from tests.unit.wheels import make_record

RECORD = make_record.build_record()
BLOCK = b"x" * 40960


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def write(path: Path, data: bytes = BLOCK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_file_that_is_also_elsewhere_is_shared(tmp_path: Path) -> None:
    own = write(tmp_path / "env" / "own")
    os.link(own, tmp_path / "env" / "own-again")
    os.link(write(tmp_path / "cache"), tmp_path / "env" / "linked")
    size = folder_size(tmp_path / "env")
    assert (size.freed, size.shared) == (own.stat().st_blocks * 512,) * 2
    assert folder_size(tmp_path / "absent").freed == 0


def test_everything_in_the_store_is_listed(store: Store, tmp_path: Path) -> None:
    wheel = write(tmp_path / "demo-1.0-py3-none-any.whl")
    name = str(RECORD.record.build)
    with store.work("d" * 16):
        stored = store.add("d" * 64, wheel, RECORD)
    write(stored.wheel.with_name("facts-0.json"), json.dumps({"sha256": "a" * 64}).encode())
    write(store.root / "builds" / ("e" * 64) / "build.json", b"{}")
    write(store.root / "envs" / "key.json", json.dumps({"packages": ["ninja==1", "torch==2.11.0"]}).encode())
    write(store.root / "remote" / "1f.json", json.dumps({"digest": "d" * 64}).encode())
    for path in (
        "remote/use-demo-cu130.json",
        f"received/{'b' * 64}/other-1.0-py3-none-any.whl",
        f"received/{'b' * 64}/.other-1.0-py3-none-any.whl.partial",
        "envs/key/lib/torch.so",
        "sources/sdists/s/demo-1.0.tar.gz",
        "sources/seen/marker",
        "objects/kept/0",
        f"proofs/{'a' * 64}.json",
        f"logs/{name}.log",
        "runs/20261122.json",
        "work/job/half.o",
    ):
        write(store.root / path)
    items = {item.target: item for item in store_items(store)}
    assert {target: (item.kind, item.name) for target, item in items.items()} == {
        f"builds/{'d' * 64}": (Kind.BUILDS, name),
        f"builds/{'e' * 64}": (Kind.BUILDS, f"{'e' * 16} (made by a different version of buildfarm)"),
        "envs/key": (Kind.ENVIRONMENTS, "key torch==2.11.0"),
        "sources/sdists/s": (Kind.SOURCES, "demo-1.0.tar.gz"),
        "objects": (Kind.OBJECTS, "compiler cache of local builds"),
        f"proofs/{'a' * 64}.json": (Kind.PROOFS, "a" * 16),
        f"logs/{name}.log": (Kind.LOGS, name),
        "remote/1f.json": (Kind.REMOTE, "1f"),
        "remote/use-demo-cu130.json": (Kind.REMOTE, "use-demo-cu130"),
        f"received/{'b' * 64}": (Kind.RECEIVED, "other-1.0-py3-none-any.whl"),
        "runs/20261122.json": (Kind.RUNS, "20261122"),
        "work/job": (Kind.SCRATCH, "job"),
    }
    build = items[f"builds/{'d' * 64}"]
    assert build.owns == {f"logs/{name}.log", f"proofs/{'a' * 64}.json", "remote/1f.json"}
    assert build.size > len(BLOCK)


def test_what_is_used_is_not_deleted(tmp_path: Path) -> None:
    digest, target = "d" * 64, f"builds/{'d' * 64}"
    store = Store(tmp_path / "store")
    with store.work(digest[:16]):
        added = store.add(digest, write(tmp_path / "demo-1.0-py3-none-any.whl"), RECORD)
    os.utime(store.root / target, (0, 0))
    other = Store(store.root)
    assert not other.delete(target, target)  # the new build is marked
    del store, added
    taken = Store(other.root).take(digest)  # the result keeps the mark, also after its store is gone
    assert taken is not None
    assert not other.delete(target, target)
    assert other.last_use(target).year > 2000
    del taken
    assert other.delete(target, target)
    assert other.find(digest) is None
    assert not list((other.root / "work").iterdir())
