"""Running programs: logs, interrupts, orphans, what they may change, folders without write permission, limits."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from builder import confinement, process, resources
from builder.confinement import confined, weakness
from builder.errors import Code, Exit
from builder.resources import Resources, compile_jobs, find_shortages, measure_resources
from builder.store import Store
from tests.conftest import PATIENCE, owned, wait_until


def test_output_and_command_go_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    status = process.run([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log=log, owner="demo")
    assert status == 3
    assert "hello" in log.read_text()
    assert log.read_text().startswith("+ ")


def test_orphans_of_one_owner_are_killed_and_no_others() -> None:
    owner = uuid.uuid4().hex
    longer = f"{owner}2"
    echo = [sys.executable, "-c", "print(input())"]
    mine, other = (
        subprocess.Popen(
            echo, env={process.OWNER_VARIABLE: each}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for each in (owner, longer)
    )
    with mine, other:
        try:
            # A process has its environment a moment after its start.
            wait_until(lambda: owned(owner) == [mine.pid] and owned(longer) == [other.pid], "two processes with owners")
            assert process.kill_orphans(owner) == [mine.pid]
            assert mine.wait(PATIENCE) == -9
            assert other.communicate("alive\n", timeout=PATIENCE)[0] == "alive\n"
        finally:
            mine.kill()
            other.kill()


def test_kill_all_kills_process_groups_and_nothing_starts_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_stopping", threading.Event())
    started = tmp_path / "child"
    child = f"import time, pathlib; pathlib.Path({str(started)!r}).touch(); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(process.run([sys.executable, "-c", parent], log=tmp_path / "log", owner=str(tmp_path)))
        except process.Interrupted:
            outcome.append("interrupted")

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(started.exists, "the start of the child")
    assert len(owned(str(tmp_path))) > 1
    process.kill_all()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    assert outcome == ["interrupted"]
    wait_until(lambda: not owned(str(tmp_path)), "the end of all processes")
    with pytest.raises(process.Interrupted):
        process.run(["true"], log=tmp_path / "log", owner="late")


def test_an_interrupt_during_the_wait_kills_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupted(*_: object) -> list[str]:
        started.extend(process._running)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["sleep", "600"], log=tmp_path / "log", owner=str(tmp_path))
    (keeper,) = started
    assert not Path(f"/proc/{keeper}").exists()


TWO_SIGNALS = """
import signal, sys, threading, time
from pathlib import Path
from builder import process
from builder.process import handle_signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
process.SECONDS_TO_STOP = 600
handle_signals()
options = {"log": Path("log"), "owner": str(Path.cwd())}
program = threading.Thread(target=process.run, args=(["sleep", "600"],), kwargs=options, daemon=True)
program.start()
try:
    for _ in range(2400):
        if process._running:
            print("running", flush=True)
            break
        time.sleep(0.05)
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.readline()  # the second signal arrives before the program is killed
    process.kill_all()
    program.join(120)
    print("ended", not program.is_alive(), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_interrupt_the_end_of_a_run(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_SIGNALS],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "running\n"
            run.send_signal(number)
            assert run.stdout.readline() == "interrupted\n"
            run.send_signal(number)
            out, _ = run.communicate("\n", timeout=2 * PATIENCE)
            assert out == "ended True\n"
        finally:
            run.kill()


ERROR_OF_A_SIGNAL = """
import os, signal
from builder import __main__ as program

def broken(**_):
    try:
        if {sent}:
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        raise RuntimeError("release unlocked lock")

program.app = broken
program.main()
"""


def test_an_error_that_an_interrupt_became_is_an_interrupt() -> None:
    """Seen in CI: a signal arrives while `Condition.wait` takes its lock again, which raises RuntimeError."""
    for sent, code, line in ((True, Exit.INTERRUPTED, "next run"), (False, 1, "RuntimeError: release unlocked lock")):
        text = ERROR_OF_A_SIGNAL.format(sent=sent)
        ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stderr
        assert line in ran.stderr.splitlines()[-1]


NOBODY = 65534


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder of nobody; pytest's own folders are closed to that user."""
    made = Path(tempfile.mkdtemp(prefix="read-only-", dir="/var/tmp"))
    if os.geteuid() == 0:
        os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def as_nobody(step: Callable[[], None]) -> None:
    """Run a function in a process without the rights of root; fails when it raises."""
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            step()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child never returns to pytest
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def leave_read_only(place: Path) -> None:
    """What a build leaves: folders that nobody may write, or even list, and a link out of the folder."""
    for name, mode in (("src", 0o500), ("closed", 0o000)):
        (place / name / "deep").mkdir(parents=True)
        (place / name / "deep" / "file").touch()
        (place / name / "deep").chmod(mode)
        (place / name).chmod(mode)
    (place / "link").symlink_to("/var/tmp")


def test_a_scratch_folder_with_read_only_folders_is_deleted(nobodys: Path) -> None:
    def step() -> None:
        store = Store(nobodys)
        for _ in range(2):
            with store.work("job") as work:
                assert list(work.iterdir()) == []
                leave_read_only(work)
            assert not work.exists()
        leave_read_only(nobodys / "work" / "abandoned")
        Store(nobodys).clear_abandoned()
        assert list((nobodys / "work").iterdir()) == []

    as_nobody(step)


GIB = 2**30


#: Cores, GiB of memory, GiB per compiler, the wanted number, and the number of compilers.
JOBS: dict[str, tuple[int, int, float, int | None, int]] = {
    "as many as cores": (8, 64, 1.0, None, 8),
    "memory limits, one GiB is spared": (8, 5, 1.0, None, 4),
    "hungrier jobs": (8, 5, 2.0, None, 2),
    "never none": (8, 2, 4.0, None, 1),
    "no memory at all": (8, 0, 1.0, None, 1),
    "one core": (1, 64, 1.0, None, 1),
    "what was asked for wins over cores": (2, 64, 1.0, 16, 16),
    "and over memory": (8, 2, 4.0, 3, 3),
}


@pytest.mark.parametrize(("cores", "memory", "per_job", "wanted", "jobs"), JOBS.values(), ids=JOBS.keys())
def test_compile_jobs(cores: int, memory: int, per_job: float, wanted: int | None, jobs: int) -> None:
    assert compile_jobs(Resources(cores, memory * GIB), int(per_job * GIB), wanted) == jobs


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group of its own, and 64 GiB in the machine."""
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    return tmp_path


def limited(folder: Path, names: tuple[str, str], limit: str, used: int, stat: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_without_a_cgroup_the_machine_decides(cgroup: Path) -> None:
    assert cgroup.is_dir()
    assert measure_resources().memory == 64 * GIB
    assert measure_resources().cores >= 1


LIMITS = {
    "no limit": ("max", 3 * GIB, "", 64 * GIB),
    "what is left of the limit": (str(8 * GIB), 3 * GIB, "", 5 * GIB),
    "never below nothing": (str(8 * GIB), 9 * GIB, "", 0),
    "a limit beyond the machine": (str(2**63 - 4096), 3 * GIB, "", 64 * GIB),
    "cached files are free": (str(8 * GIB), 7 * GIB, f"anon 5\nfile 9\ninactive_file {6 * GIB}\n", 7 * GIB),
}


@pytest.mark.parametrize(("limit", "used", "stat", "memory"), LIMITS.values(), ids=LIMITS.keys())
def test_the_limit_of_a_cgroup_counts(limit: str, used: int, stat: str, memory: int, cgroup: Path) -> None:
    limited(cgroup, V2, limit, used, stat)
    assert measure_resources().memory == memory


def test_cgroup_version_1_counts_too(cgroup: Path) -> None:
    limited(cgroup / "memory", V1, str(8 * GIB), 7 * GIB, f"cache 1\ntotal_inactive_file {2 * GIB}\n")
    assert measure_resources().memory == 3 * GIB


def test_enough_space_and_memory_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "ENVIRONMENT_BYTES", 0)
    monkeypatch.setattr(resources, "WORK_BYTES", 0)
    assert find_shortages(Resources(1, GIB), [GIB, GIB // 2], tmp_path) == []
    assert find_shortages(Resources(1, GIB), [], tmp_path) == []


def test_each_shortage_is_an_error_with_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "ENVIRONMENT_BYTES", 2**60)
    disk, memory = find_shortages(Resources(1, GIB), [GIB // 2, 3 * GIB], tmp_path)
    assert (disk.code, disk.exit_code, disk.where) == (Code.DISK_FULL, Exit.USAGE, str(tmp_path))
    assert "GiB are free" in disk.sentence
    assert "buildfarm store prune" in disk.hints[0]
    assert "--store" in disk.hints[1]
    assert memory.code is Code.OUT_OF_MEMORY
    assert "1.0 GiB" in memory.sentence
    assert "3.0 GiB" in memory.sentence
    assert "memory_per_job" in memory.hints[0]


pytestmark = pytest.mark.skipif(bool(weakness()), reason="this kernel cannot confine a program")

#: Tries one change after another, and prints the names of those that work.
PROGRAM = """
import os, sys
own, other = sys.argv[1:]
DISK = os.makedev(8, 0)
tries = {
    "write": lambda: open(other, "r+").close(),
    "append": lambda: open(other, "a").close(),
    "truncate": lambda: os.truncate(other, 0),
    "truncate by open": lambda: os.open(other, os.O_RDONLY | os.O_TRUNC),
    "link": lambda: os.link(other, own + "/link"),
    "rename": lambda: os.rename(other, own + "/renamed"),
    "replace": lambda: os.replace(own + "/mine", other),
    "remove": lambda: os.unlink(other),
    "make": lambda: open(other + ".new", "w").close(),
    "make a folder": lambda: os.mkdir(other + ".folder"),
    "make a link": lambda: os.symlink(other, other + ".link"),
    "open a disk": lambda: os.mknod(own + "/disk", 0o60600, DISK),
    "trace": lambda: open(f"/proc/{os.getppid()}/mem", "r+b").close(),
    "write own": lambda: open(own + "/mine", "w").close(),
    "move own": lambda: (os.mkdir(own + "/folder"), os.rename(own + "/mine", own + "/folder/mine")),
    "null": lambda: open("/dev/null", "w").close(),
}
for name, change in tries.items():
    try:
        change()
    except OSError:
        continue
    print(name)
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other" / "file"
    path.parent.mkdir()
    path.write_text("as it was")
    return path


def test_a_confined_program_changes_its_own_folders_only(tmp_path: Path, other: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    argv = confined([sys.executable, "-c", PROGRAM, str(own), str(other)], [own])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["write own", "move own", "null"]
    assert other.read_text() == "as it was"
    assert list(other.parent.iterdir()) == [other]


def test_a_program_that_a_confined_one_starts_is_confined_too(other: Path) -> None:
    argv = confined(["sh", "-c", f"setsid sh -c 'echo changed > {other}'"], [])
    assert subprocess.run(argv, capture_output=True, check=False).returncode != 0
    assert other.read_text() == "as it was"


def test_the_status_and_the_variables_are_those_of_the_program(tmp_path: Path) -> None:
    argv = confined(["sh", "-c", "exit $STATUS"], [tmp_path])
    assert subprocess.run(argv, env={**os.environ, "STATUS": "7"}, check=False).returncode == 7


def test_a_program_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(confined(["no-such-program"], [tmp_path]), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no-such-program cannot be started")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("version", "text"), [(-1, "change every file"), (1, "change every file"), (2, "empty files"), (3, "")]
)
def test_what_an_old_kernel_cannot_withhold_is_said(version: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "_version", lambda: version)
    assert text in weakness()
    assert bool(text) == bool(weakness())
    assert (confined(["true"], []) == ["true"]) == (version < 2)
