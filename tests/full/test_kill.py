"""kill -9 during a build: no partial wheel, no compiler left running, and the next run finishes the build."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.store import Store
from tests.conftest import BUILDFARM, PATIENCE, ROOT, owned, run, wait_until

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: Seconds after the start of the compile; on a fast machine the last kills hit the repair and the copy to dist/.
MOMENTS = [0.0, 0.3, 1, 2, 4, 7, 11, 16, 22, 30]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A separate store, so that everything in it comes from the runs of this test."""
    folder = tmp_path / "store"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def compilers(store: Path) -> list[int]:
    """The ids of processes whose owner is a build of this store, whatever their parent is."""
    return owned(Store(store).owner(""))


def test_ten_kills_and_then_a_complete_wheel(store: Path, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    # An arch that no other test builds, so that the compiler cache is empty; a single arch, so that it is short.
    command = [
        str(BUILDFARM),
        "build",
        "--torch",
        "2.11",
        "--cuda",
        "13.0",
        "--python",
        "3.12",
        "--ext",
        "ms_deform_attn",
    ]
    command += ["--arch", "8.9", "--executor", "local", "--store", str(store), "--dist", str(dist)]
    log = store / "logs"
    for moment in MOMENTS:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if ": compile (" in line or "already built" in line:
                break
        deadline = time.monotonic() + moment
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.stderr.close()
        process.wait()
        for wheel in dist.glob("*"):
            assert wheel.suffix != ".whl" or zipfile.ZipFile(wheel).testzip() is None
        for wheel in (store / "builds").glob("*/*.whl"):
            assert zipfile.ZipFile(wheel).testzip() is None
    done = run(*command)
    assert done.code == 0, done.all
    (wheel,) = dist.glob("*.whl")
    assert zipfile.ZipFile(wheel).testzip() is None
    assert list(log.glob("*.log"))
    wait_until(lambda: compilers(store) == [], "the end of all compilers")
    assert list((store / "work").glob("*")) == [], "scratch folders of killed runs are deleted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda s: s.name)
def test_a_signal_ends_the_run_and_its_compilers(store: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [str(BUILDFARM), "build", "--torch", "2.11", "--cuda", "13.0", "--ext", "ms_deform_attn", "--arch", "8.7"]
    command += ["--executor", "local", "--store", str(store), "--dist", str(tmp_path / "dist")]
    # SIGINT has the disposition of a program in the foreground; SIGTERM and SIGHUP must work while it is ignored.
    disposition = signal.SIG_DFL if number is signal.SIGINT else signal.SIG_IGN
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, disposition),  # noqa: PLW1509 - no thread is at work here
    )
    assert process.stderr is not None
    output = ""
    while ": compile (" not in output:
        line = process.stderr.readline()
        assert line, output
        output += line
    wait_until(lambda: process.poll() is not None or compilers(store), "a compiler in the compile stage")
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output + err
    assert "interrupted; finished builds are kept" in err
    wait_until(lambda: compilers(store) == [], "the end of all compilers")
