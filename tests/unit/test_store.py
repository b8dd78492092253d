"""The store: whole or not at all, found by digest, locks that die with their owner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.matrix.axes import Cell
from builder.process import JOB_VARIABLE
from builder.proof import Check, Proof, Verdict
from builder.store import Store, default_store, digest_of, write_whole


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
    added = store.add("d" * 64, wheel, {"build": "demo"})
    found = store.find("d" * 64)
    assert found == added
    assert found is not None
    assert found.wheel.read_bytes() == b"wheel"
    assert found.record["build"] == "demo"


@pytest.mark.parametrize("broken", ["build.json", "demo-1.0-py3-none-any.whl"])
def test_a_build_with_a_part_missing_counts_as_none_and_is_replaced(store: Store, wheel: Path, broken: str) -> None:
    store.add("d" * 64, wheel, {})
    (store.root / "builds" / ("d" * 64) / broken).unlink()
    assert store.find("d" * 64) is None
    assert store.add("d" * 64, wheel, {}).wheel.is_file()


def test_scratch_is_empty_whatever_was_left_and_gone_afterwards(store: Store) -> None:
    (store.root / "work" / "job").mkdir()
    (store.root / "work" / "job" / "half.o").write_bytes(b"x")
    with store.work("job") as folder:
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_abandoned_scratch_is_cleared_and_that_of_a_live_run_is_not(store: Store) -> None:
    (store.root / "work" / "dead").mkdir()
    with store.work("alive") as folder:
        store.clear_abandoned()
        assert folder.is_dir()
    assert list((store.root / "work").iterdir()) == []


def test_writing_fails_without_touching_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_digest_does_not_depend_on_order() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})


def proof(check: Check, verdict: Verdict, *, wheel: str = "a" * 64) -> Proof:
    return Proof(wheel, Cell.parse("torch2.11.0-cu130-cp312"), check, verdict)


def test_a_later_proof_replaces_the_earlier_of_the_same_check_only(store: Store) -> None:
    store.save_proofs([proof(Check.IMPORT, Verdict.NOT_RUN), proof(Check.GPU_VALUES, Verdict.NOT_RUN)])
    store.save_proofs([proof(Check.IMPORT, Verdict.PASSED)])
    assert {p.check: p.verdict for p in store.proofs("a" * 64)} == {
        Check.IMPORT: Verdict.PASSED,
        Check.GPU_VALUES: Verdict.NOT_RUN,
    }
    assert store.proofs("b" * 64) == []


def _hold(root: Path, ready: str) -> None:
    with Store(root).lock("one"):
        Path(ready).touch()
        time.sleep(60)


def test_a_lock_is_free_once_its_owner_was_killed(store: Store, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    owner = multiprocessing.get_context("spawn").Process(target=_hold, args=(store.root, str(ready)))
    owner.start()
    while not ready.exists():
        time.sleep(0.02)
    with store.lock("one", wait=False) as got:
        assert not got
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    with store.lock("one", wait=False) as got:
        assert got


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUILDFARM_STORE", str(tmp_path / "here"))
    assert default_store() == tmp_path / "here"


def test_two_stores_never_take_each_others_programs_for_orphans(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with store.work("same"):
        program = subprocess.Popen(sleep, env={JOB_VARIABLE: store.mark("same")})
        try:
            with other.work("same"):
                assert program.poll() is None
        finally:
            program.kill()
            program.wait()
