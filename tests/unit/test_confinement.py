"""What a confined program can change: its own folders, and nothing else of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder import confinement
from builder.confinement import confined, weakness

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
