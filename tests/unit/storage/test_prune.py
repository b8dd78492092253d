"""What `store prune` deletes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from builder.commands.store import disk_size
from builder.commands.store import prune_store as prune
from builder.store import RUN, Store
from tests.unit.wheels import make_record

RECORD = make_record.build_record()
BLOCK = b"x" * 40960

DIGEST, WHEEL = "d" * 64, "a" * 64

#: Everything that `prune` can delete.
ITEMS = [
    f"builds/{'e' * 64}/build.json",
    "envs/key/lib/torch.so",
    "envs/bytecode-key/torch.pyc",
    "inventories/2.11.0.json",
    "logs/demo.log",
    "objects/demo/kept/0/object",
    f"proofs/{WHEEL}.json",
    "received/key/other-1.0-py3-none-any.whl",
    "remote/task.json",
    "remote/use-demo-cu130.json",
    "runs/20261122/run.json",
    "sources/git/demo/file",
    "sources/sdists/key/demo-1.0.tar.gz",
    "sources/wheels/key/demo-1.0-py3-none-any.whl",
]
#: And what stays.
KEPT = ["envs/key.json", "envs/docker-key.txt", "locks/one.lock", "sources/last/demo.json", "sources/seen/marker"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def write(path: Path, data: bytes = BLOCK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def make_old(store: Store, days: float = 9) -> None:
    then = time.time() - days * 86400
    for path in store.root.rglob("*"):
        os.utime(path, (then, then))


def item_of(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[0] == "sources" else 2])


def targets(store: Store, keep_days: float = 0) -> set[str]:
    return {item.target for item in prune(store, keep_days).deleted}


def test_a_file_that_is_also_elsewhere_frees_nothing(tmp_path: Path) -> None:
    own = write(tmp_path / "env" / "own")
    os.link(own, tmp_path / "env" / "own-again")
    os.link(write(tmp_path / "cache"), tmp_path / "env" / "linked")
    assert disk_size(tmp_path / "env") == own.stat().st_blocks * 512
    assert disk_size(tmp_path / "absent") == 0


def test_what_was_not_used_is_deleted(store: Store) -> None:
    for path in (*ITEMS, *KEPT):
        write(store.root / path)
    make_old(store)
    assert targets(store, keep_days=10) == set()
    planned = prune(store, 8, dry_run=True)
    assert {item.target for item in planned.deleted} == {item_of(path) for path in ITEMS}
    assert all((store.root / path).exists() for path in (*ITEMS, *KEPT))
    done = prune(store, 8)
    assert done == planned
    assert {item.content for item in done.deleted} - {""} == {
        "other-1.0-py3-none-any.whl",
        "demo-1.0.tar.gz",
        "demo-1.0-py3-none-any.whl",
    }
    assert all(item.size >= len(BLOCK) for item in done.deleted)
    assert not [path for path in ITEMS if (store.root / path).exists()]
    assert all((store.root / path).exists() for path in KEPT)


@pytest.mark.parametrize("used", ["objects/demo/kept/0/object", f"builds/{'e' * 64}", "logs/demo.log"])
def test_what_was_used_meanwhile_stays(store: Store, used: str) -> None:
    for path in ITEMS:
        write(store.root / path)
    make_old(store)
    os.utime(store.root / used)
    assert targets(store, keep_days=1) == {item_of(path) for path in ITEMS} - {item_of(used)}


def test_proofs_that_are_read_were_used(store: Store) -> None:
    write(store.root / "proofs" / f"{WHEEL}.json", b"[]")
    make_old(store)
    assert store.proofs(WHEEL) == []
    assert targets(store, keep_days=1) == set()
    make_old(store)
    assert targets(store, keep_days=1) == {f"proofs/{WHEEL}.json"}


def test_what_a_process_uses_is_kept(store: Store) -> None:
    for path in ITEMS:
        write(store.root / path)
    make_old(store)
    user = Store(store.root)
    user.use("envs/key")
    user.use(RUN)
    make_old(store)
    own_marks = {item_of(path) for path in ITEMS if path.split("/")[0] in ("builds", "envs", "received", "runs")}
    done = prune(store, 0)
    assert {item.target for item in done.deleted} == own_marks - {"envs/key"}
    assert {item.target for item in done.in_use} == {item_of(path) for path in ITEMS} - own_marks | {"envs/key"}
    del user
    assert targets(store) == {item.target for item in done.in_use}


def test_a_stored_build_in_use_is_not_deleted(tmp_path: Path) -> None:
    target = f"builds/{DIGEST}"
    store = Store(tmp_path / "store")
    with store.work(DIGEST[:16]):
        added = store.add(DIGEST, write(tmp_path / "demo-1.0-py3-none-any.whl"), RECORD)
    os.utime(store.root / target, (0, 0))
    other = Store(store.root)
    assert not other.delete(target, target)  # the new build is marked
    del store, added
    taken = Store(other.root).take(DIGEST)  # the result keeps the mark, also after its store is gone
    assert taken is not None
    assert not other.delete(target, target)
    assert other.last_use(target).year > 2000
    del taken
    assert other.delete(target, target)
    assert other.find(DIGEST) is None
    assert not list((other.root / "work").iterdir())
