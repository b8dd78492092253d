"""The store: files are complete or absent, builds are found by digest, locks and marks die with their process."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.hashing import digest_of, sha256_of
from builder.matrix.axes import Cell
from builder.process import OWNER_VARIABLE
from builder.proof import Check, Proof, Verdict
from builder.store import InUse, Store, default_store, remove_temporary_files, sync_file_system, write_atomic
from tests.conftest import PATIENCE, owned, wait_until
from tests.unit.wheels import make_record

RECORD = make_record.build_record()
HOLD = """
import sys
from pathlib import Path
from builder.store import InUse
marks = InUse(Path(sys.argv[1]))
marks.mark("one")
print("marked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(b"wheel")
    return path


def test_a_build_is_found_by_its_digest(store: Store, wheel: Path) -> None:
    assert store.find("d" * 64) is None
    added = store.add("d" * 64, wheel, RECORD)
    found = store.find("d" * 64)
    assert found == added
    assert found is not None
    assert found.wheel.read_bytes() == b"wheel"
    assert found.record == RECORD


@pytest.mark.parametrize("broken", ["build.json", "demo-1.0-py3-none-any.whl"])
def test_an_incomplete_build_is_not_found_and_is_replaced(store: Store, wheel: Path, broken: str) -> None:
    store.add("d" * 64, wheel, RECORD)
    (store.root / "builds" / ("d" * 64) / broken).unlink()
    assert store.find("d" * 64) is None
    assert store.add("d" * 64, wheel, RECORD).wheel.is_file()


def test_a_stored_wheel_that_changed_is_named_and_not_taken(
    store: Store, wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = store.add("d" * 64, wheel, RECORD)
    assert store.take("d" * 64) == stored
    stored.wheel.write_bytes(b"whEel")
    assert store.take("d" * 64) is None
    assert "the stored wheel demo-1.0-py3-none-any.whl is damaged" in " ".join(capsys.readouterr().err.split())
    store.add("d" * 64, wheel, RECORD)
    assert store.take("d" * 64) is not None


def test_a_wheel_is_hashed_once_until_it_changes(store: Store, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def watched(path: Path) -> str:
        hashed.append(path)
        return sha256_of(path)

    stored = store.add("d" * 64, wheel, RECORD)
    monkeypatch.setattr("builder.store.sha256_of", watched)
    assert store.take("d" * 64) == store.take("d" * 64) == stored
    assert hashed == [stored.wheel]
    stored.wheel.write_bytes(b"whEel")
    assert store.take("d" * 64) is None
    assert len(hashed) == 2


@pytest.mark.parametrize("change", [{"schema": 1}, {"toolchain": None}, {"started": "yesterday"}, {"seconds": None}])
def test_a_build_with_an_unreadable_record_is_not_found(store: Store, wheel: Path, change: dict[str, Any]) -> None:
    store.add("d" * 64, wheel, RECORD)
    file = store.root / "builds" / ("d" * 64) / "build.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert store.find("d" * 64) is None


def test_a_scratch_folder_starts_empty_and_is_deleted_afterwards(store: Store) -> None:
    (store.root / "work" / "job").mkdir()
    (store.root / "work" / "job" / "half.o").write_bytes(b"x")
    with store.work("job") as folder:
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_abandoned_scratch_folders_are_deleted_and_live_ones_are_not(store: Store) -> None:
    (store.root / "work" / "dead").mkdir()
    with store.work("alive") as folder:
        store.clear_abandoned()
        assert folder.is_dir()
    assert list((store.root / "work").iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # the system names no file for a write that fails

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_atomic(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        write_atomic(tmp_path, b"new")
    assert caught.value.filename == str(tmp_path), "and not the temporary file"


def test_threads_may_write_the_same_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    texts = [str(n).encode() * 10_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_atomic(path, text), texts * 10))
    assert path.read_bytes() in texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_temporary_files_of_a_dead_process_are_removed_and_those_of_a_live_one_are_not(tmp_path: Path) -> None:
    dead, live = tmp_path / ".a.whl.0123456789ab.999999999", tmp_path / f".a.whl.0123456789ab.{os.getpid()}"
    other = tmp_path / ".hidden.txt"
    for path in (dead, live, other):
        path.touch()
    remove_temporary_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([live, other])


def test_digest_does_not_depend_on_order() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})


def proof(check: Check, verdict: Verdict, *, wheel: str = "a" * 64) -> Proof:
    return Proof(wheel, Cell.parse("torch2.11.0-cu130-cp312"), check, verdict)


def test_a_proof_replaces_only_the_earlier_one_of_its_check(store: Store) -> None:
    store.save_proofs([proof(Check.IMPORT, Verdict.NOT_RUN), proof(Check.GPU_VALUES, Verdict.NOT_RUN)])
    store.save_proofs([proof(Check.IMPORT, Verdict.PASSED)])
    assert {p.check: p.verdict for p in store.proofs("a" * 64)} == {
        Check.IMPORT: Verdict.PASSED,
        Check.GPU_VALUES: Verdict.NOT_RUN,
    }
    assert store.proofs("b" * 64) == []


@pytest.mark.parametrize("earlier", [Verdict.NOT_RUN, Verdict.PASSED])
def test_of_a_wheel_without_a_recipe_not_run_replaces_no_result_of_a_recipe(store: Store, earlier: Verdict) -> None:
    before = replace(proof(Check.GPU_VALUES, earlier), basis="recipe", reason="no GPU on this machine")
    without = replace(proof(Check.GPU_VALUES, Verdict.NOT_RUN), basis="none", reason="no cases")
    other = replace(without, check=Check.VALUES)
    store.save_proofs([before])
    assert store.save_proofs([without, other], keep_others=True) == [other]
    assert {p.check: p for p in store.proofs("a" * 64)} == {Check.GPU_VALUES: before, Check.VALUES: other}
    again = replace(other, reason="no GPU")
    assert store.save_proofs([again], keep_others=True) == [again]
    ran = replace(without, verdict=Verdict.FAILED)
    assert store.save_proofs([ran], keep_others=True) == [ran]
    store.save_proofs([before])
    assert store.save_proofs([without]) == [without], "a changed recipe"


def _hold(root: Path, ready: str) -> None:
    with Store(root).lock("one"):
        Path(ready).touch()
        time.sleep(600)


def test_a_lock_is_released_when_its_process_is_killed(store: Store, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    owner = multiprocessing.get_context("spawn").Process(target=_hold, args=(store.root, str(ready)))
    owner.start()
    try:
        wait_until(ready.exists, "the lock of the other process")
        with store.lock("one", wait=False) as got:
            assert not got
        holders: list[str] = []

        def stop(who: str) -> None:
            holders.append(who)
            owner.kill()

        with store.lock("one", on_wait=stop):
            assert holders == [f"process {owner.pid} in {Path.cwd()}"]
    finally:
        owner.kill()
        owner.join()
    with store.lock("one", wait=False) as got:
        assert got


def test_an_environment_variable_names_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUILDFARM_STORE", str(tmp_path / "here"))
    assert default_store() == tmp_path / "here"


def test_a_store_does_not_kill_processes_of_a_different_store(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    echo, owner = [sys.executable, "-c", "print(input())"], store.owner("same")
    with (
        store.work("same"),
        subprocess.Popen(
            echo, env={OWNER_VARIABLE: owner}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program,
    ):
        try:
            wait_until(lambda: owned(owner) == [program.pid], "a program with its owner")
            with other.work("same"):
                assert program.communicate("alive\n", timeout=PATIENCE)[0] == "alive\n"
        finally:
            program.kill()


def test_file_systems(tmp_path: Path) -> None:
    sync_file_system(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_file_system(tmp_path / "missing")


def test_a_marked_name_cannot_be_claimed(tmp_path: Path) -> None:
    first, second, prune = (InUse(tmp_path / "marks") for _ in range(3))
    first.mark("one")
    second.mark("one")
    with prune.claimed("one") as one, prune.claimed("two") as two:
        assert (one, two) == (False, True)
    del first
    with prune.claimed("one") as one:
        assert not one
    del second
    with prune.claimed("one") as one:
        assert one


def test_a_killed_process_leaves_no_mark(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    argv = [sys.executable, "-c", HOLD, str(marks)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "marked\n"
        with InUse(marks).claimed("one") as free:
            assert not free
        process.kill()
        process.wait()
    with InUse(marks).claimed("one") as free:
        assert free


def test_a_mark_waits_for_the_end_of_a_deletion(tmp_path: Path) -> None:
    prune, user, marked = InUse(tmp_path / "marks"), InUse(tmp_path / "marks"), threading.Event()

    def mark() -> None:
        user.mark("one")
        marked.set()

    waiting = threading.Thread(target=mark)
    with prune.claimed("one") as free:
        assert free
        waiting.start()
        assert not marked.wait(0.1)
    assert marked.wait(PATIENCE)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    with prune.claimed("one") as free:
        assert not free
