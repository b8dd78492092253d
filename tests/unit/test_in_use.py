"""Marks of what running processes use: shared among users, and gone with the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from builder.store import InUse
from tests.conftest import PATIENCE

HOLD = """
import sys
from pathlib import Path
from builder.store import InUse
marks = InUse(Path(sys.argv[1]))
marks.mark("one")
print("marked", flush=True)
sys.stdin.read()
"""


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
