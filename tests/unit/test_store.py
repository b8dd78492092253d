"""The store: its folder, complete files, builds by digest, locks and marks, the history of runs, `store prune`."""

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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from builder.commands import folders
from builder.commands.folders import open_store
from builder.commands.report import ReportOptions, report
from builder.commands.store import disk_size, history_text
from builder.commands.store import prune_store as prune
from builder.errors import NothingSelectedError, UsageError
from builder.formats import digest_of
from builder.matrix.axes import Cell
from builder.process import OWNER_VARIABLE
from builder.progress.display import StageTime, Timeline
from builder.proof import Check, Proof, Verdict
from builder.publish.runs.history import last_steps, runs, save_run
from builder.store import Store, remove_temporary_files, write_atomic
from tests.conftest import PATIENCE, owned, wait_until
from tests.unit.wheels import make_record

RECORD = make_record.build_record()


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
    return {item.target for item in prune(store, keep_days)[0]}


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
    planned, _ = prune(store, 8, dry_run=True)
    assert {item.target for item in planned} == {item_of(path) for path in ITEMS}
    assert all((store.root / path).exists() for path in (*ITEMS, *KEPT))
    assert prune(store, 8) == (planned, "")
    assert {item.content for item in planned} - {""} == {
        "other-1.0-py3-none-any.whl",
        "demo-1.0.tar.gz",
        "demo-1.0-py3-none-any.whl",
    }
    assert all(item.size >= len(BLOCK) for item in planned)
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


HOLD = """
import sys
from pathlib import Path
from builder.store import Store
store = Store(Path(sys.argv[1]))
store.hold()
print("held", flush=True)
sys.stdin.read()
"""


def test_nothing_is_deleted_while_a_process_holds_the_store(store: Store) -> None:
    for path in ITEMS:
        write(store.root / path)
    make_old(store)
    argv = [sys.executable, "-c", HOLD, str(store.root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert prune(store, 0) == ([], f"process {process.pid} in {Path.cwd()}")
        assert {item.target for item in prune(store, 0, dry_run=True)[0]} == {item_of(path) for path in ITEMS}
        process.kill()
        process.wait()
    assert targets(store) == {item_of(path) for path in ITEMS}


def test_a_command_waits_for_the_end_of_a_deletion(store: Store) -> None:
    held = threading.Event()

    def hold() -> None:
        user = Store(store.root)
        user.hold()
        held.set()
        del user

    waiting = threading.Thread(target=hold)
    with store.alone() as in_use:
        assert not in_use
        waiting.start()
        assert not held.wait(0.1)
    assert held.wait(PATIENCE)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    with store.alone() as in_use:
        assert not in_use


REPORT: dict[str, Any] = {
    "builds": [
        {"build": "a", "wheel": "a.whl", "status": "built", "error": None, "proofs": [{"verdict": "passed"}] * 2},
        {"build": "b", "status": "failed", "error": "no nvcc"},
    ],
    "skips": [{}],
}


def test_the_report_of_each_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    assert history_text(runs(store)) == "No run is recorded in this store.\n"
    monkeypatch.setattr("sys.argv", ["buildfarm", "build", "--ext", "https://me:secret@host/x"])
    save_run(store, datetime(2026, 11, 21, 9, 30, tzinfo=UTC), 12.34, json.dumps(REPORT))
    save_run(store, datetime(2026, 11, 22, 9, 30, tzinfo=UTC), 2.0, json.dumps({"builds": [], "skips": []}))
    (tmp_path / "runs" / "20261120").mkdir()
    (tmp_path / "runs" / "20261120" / "run.json").write_text("{}")
    found = runs(store)
    assert "20261120/run.json is damaged or of a different version" in "".join(capsys.readouterr().err.split("\n"))
    assert [run.id[:15] for run in found] == ["20261122-093000", "20261121-093000"]
    shown = history_text(found).splitlines()[3:]
    assert shown[0].endswith("  12 s  a, b: 1 failed, 1 built")
    assert shown[1:] == ["  buildfarm build --ext https://***@host/x", f"  in {Path.cwd()}"]
    assert found[1].counts() == {"built": 1, "failed": 1}
    assert found[1].report == REPORT


def test_the_steps_of_the_newest_run_say_how_long_a_step_takes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day, seconds in ((20, 90.0), (21, 70.0)):
        timeline = Timeline((StageTime("a", "compile", 1.0, 1.0 + seconds),))
        save_run(store, datetime(2026, 11, day, tzinfo=UTC), 1, json.dumps(REPORT), timeline=timeline)
    save_run(store, datetime(2026, 11, 22, tzinfo=UTC), 1, json.dumps(REPORT))
    assert last_steps(store) == {("a", "compile"): 70.0}


def test_a_step_of_a_failed_build_and_one_of_another_folder_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two projects with an extension of one name share a store."""
    store, timeline = Store(tmp_path / "store"), Timeline((StageTime("a", "compile", 0.0, 15.0),))
    failed = {"builds": [{"build": "a", "status": "failed", "error": "no nvcc"}], "skips": []}
    save_run(store, datetime.now(UTC), 1, json.dumps(failed), timeline=timeline)
    assert last_steps(store) == {}
    save_run(store, datetime.now(UTC), 1, json.dumps(REPORT), timeline=timeline)
    assert last_steps(store) == {("a", "compile"): 15.0}
    monkeypatch.chdir(tmp_path)
    assert last_steps(store) == {}


def test_report_takes_the_newest_run_of_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several projects share a store; a page about another project would look like one about this."""
    store = tmp_path / "store"
    for day, name in ((20, "mine"), (21, "other")):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        built: dict[str, Any] = {"build": name, "wheel": f"{name}.whl", "status": "built", "error": None}
        built |= {"hints": [], "serves": []}
        report_json = json.dumps({"builds": [built], "skips": []})
        save_run(open_store(store), datetime(2026, 11, day, tzinfo=UTC), 1, report_json)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(NothingSelectedError, match="no run was started in this folder") as caught:
        report(ReportOptions(store=store))
    assert "`buildfarm store history`" in caught.value.hints[0]
    assert not list(Path.cwd().iterdir())
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.setattr("sys.argv", ["buildfarm", "build"])
    report(ReportOptions(store=store))
    assert f"of mine: 1 built, in {tmp_path / 'mine'}" in "".join(capsys.readouterr().err.split("\n"))
    assert Path("buildfarm-report.html").is_file()


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in place of /var/tmp."""
    found = tmp_path / "root"
    found.mkdir()
    monkeypatch.setattr(folders, "ROOT", found)
    return found


def test_a_store_whose_path_has_a_space_is_used_through_a_link(tmp_path: Path, root: Path) -> None:
    """torch writes the path of nvcc, which is in the store, into its ninja file without quotes."""
    place = tmp_path / "my (new) store"
    one, two = folders.open_store(place), folders.open_store(place)
    assert one.root == two.root
    assert one.root.parent == root
    assert " " not in one.root.name
    assert one.root.resolve() == place
    assert folders.open_store(tmp_path / "store").root == tmp_path / "store"


@pytest.mark.usefixtures("root")
def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    """Everybody can write to /var/tmp, and the store holds programs."""
    place = tmp_path / "my store"
    link = folders.open_store(place).root
    link.unlink()
    link.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="cannot use this store: File exists"):
        folders.open_store(place)
