"""Compilers end with the run that started them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from builder import process
from tests.conftest import PATIENCE, lacking, wait_until

#: A constant that takes a compiler minutes to compute.
ENDLESS = (
    "constexpr long sum() { long s = 0; for (long i = 0; i < 90000000000; ++i) s += i % 7; return s; }\n"
    "static_assert(sum() != 1);\n"
)


NINJA = """\
rule cxx
  command = g++ -std=c++17 -fconstexpr-ops-limit=999999999999 -fconstexpr-loop-limit=2147483647 -c $in -o $out
build a.o: cxx a.cpp
build b.o: cxx b.cpp
"""


def descendants_named(program: str, folder: Path) -> list[int]:
    """The processes of a program that work in a folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink() == folder and (link.parent / "comm").read_text().strip() == program:
                found.append(int(link.parent.name))
    return found


@pytest.mark.parametrize("ending", ["kill_all", "killed keeper"])
def test_no_compiler_outlives_a_run_that_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """ninja starts each command in a process group of its own, so killing its own group leaves the compilers."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for tool in ("ninja", "g++"):
        if not shutil.which(tool):
            lacking(f"{tool} is not on PATH")
    monkeypatch.setattr(process, "_stopping", threading.Event())
    (tmp_path / "build.ninja").write_text(NINJA)
    for name in ("a.cpp", "b.cpp"):
        (tmp_path / name).write_text(ENDLESS)
    ended: list[object] = []

    def work() -> None:
        try:
            argv = ["sh", "-c", "ninja -j 2; true"]
            ended.append(process.run(argv, log=tmp_path / "log", owner=str(tmp_path), cwd=tmp_path))
        except process.Interrupted:
            ended.append("interrupted")

    worker = threading.Thread(target=work)
    worker.start()
    log = tmp_path / "log"
    wait_until(lambda: len(descendants_named("cc1plus", tmp_path)) == 2, lambda: f"two compilers: {log.read_text()}")
    if ending == "kill_all":
        process.kill_all()
    else:
        (keeper,) = process._running
        os.kill(keeper, signal.SIGKILL)
    worker.join(PATIENCE)
    assert not worker.is_alive()
    assert ended == ["interrupted" if ending == "kill_all" else -signal.SIGKILL]
    try:
        wait_until(lambda: not descendants_named("cc1plus", tmp_path), "the end of the compilers")
    finally:
        for pid in descendants_named("cc1plus", tmp_path):  # they compute for hours
            os.kill(pid, signal.SIGKILL)
