"""kill -9 in the middle: never a partial wheel, no compiler left running, and the next run finishes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.process import JOB_VARIABLE
from builder.store import Store
from tests.conftest import BUILDFARM, ROOT, run

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: Seconds after the compile began; the last ones fall into repair and hand-over on a fast machine.
MOMENTS = [0.0, 0.3, 1, 2, 4, 7, 11, 16, 22, 30]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store of its own, so that what is left in it was left by the runs of this test."""
    folder = tmp_path / "store"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def compilers(store: Path) -> list[int]:
    """Processes that carry the mark of this store, whoever their parent is."""
    mark = f"{JOB_VARIABLE}={Store(store).mark('')}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_ten_kills_and_then_a_whole_wheel(store: Path, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    # One arch of its own, so that this build is in nobody's cache, and short.
    words = [
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
    words += ["--arch", "8.9", "--executor", "local", "--store", str(store), "--dist", str(dist)]
    log = store / "logs"
    for moment in MOMENTS:
        farm = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert farm.stderr is not None
        for line in farm.stderr:
            if ": compile (" in line or "already built" in line:
                break
        deadline = time.monotonic() + moment
        while farm.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        farm.send_signal(signal.SIGKILL)
        farm.stderr.close()
        farm.wait()
        for wheel in dist.glob("*"):
            assert wheel.suffix != ".whl" or zipfile.ZipFile(wheel).testzip() is None
        for wheel in (store / "builds").glob("*/*.whl"):
            assert zipfile.ZipFile(wheel).testzip() is None
    done = run(*words)
    assert done.code == 0, done.all
    (wheel,) = dist.glob("*.whl")
    assert zipfile.ZipFile(wheel).testzip() is None
    assert list(log.glob("*.log"))
    assert compilers(store) == []
    assert list((store / "work").glob("*")) == [], "scratch folders of killed runs are gone"


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda s: s.name)
def test_told_to_end_it_takes_its_compilers_along(store: Path, tmp_path: Path, ending: signal.Signals) -> None:
    words = [str(BUILDFARM), "build", "--torch", "2.11", "--cuda", "13.0", "--ext", "ms_deform_attn", "--arch", "8.7"]
    words += ["--executor", "local", "--store", str(store), "--dist", str(tmp_path / "dist")]
    # SIGINT as a shell in the foreground leaves it, whatever started the tests; the others must not need it.
    disposition = signal.SIG_DFL if ending is signal.SIGINT else signal.SIG_IGN
    farm = subprocess.Popen(
        words,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, disposition),  # noqa: PLW1509 - no thread is at work here
    )
    assert farm.stderr is not None
    said = ""
    while ": compile (" not in said:
        line = farm.stderr.readline()
        assert line, said
        said += line
    time.sleep(1.5)
    mine = compilers(store)
    assert mine, "a compiler was to run by now"
    farm.send_signal(ending)
    _, err = farm.communicate(timeout=30)
    assert farm.returncode == 130, err
    assert "interrupted; what was finished is kept" in err
    time.sleep(0.2)
    assert compilers(store) == []
