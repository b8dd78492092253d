"""The scripts that run around a compile: what a container gets of them, and that they need nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.wheels.scripts import FOLDERS, copy_scripts, script_command


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    copy_scripts(tmp_path)
    return tmp_path


def test_a_container_gets_two_folders_without_bytecode(copied: Path) -> None:
    files = {path.relative_to(copied / "builder") for path in copied.rglob("*") if path.is_file()}
    assert {path.parent.as_posix() for path in files} == set(FOLDERS)
    assert {path.suffix for path in files} == {".py", ".sh"}


def test_the_scripts_need_the_standard_library_only(copied: Path, tmp_path: Path) -> None:
    """-S hides all packages of this Python, buildfarm among them."""
    argv = script_command(sys.executable, copied, copied / "job.json", "no-such-command")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env={})
    assert (done.returncode, done.stderr) == (1, "error: unknown command no-such-command\n")
    assert not list(copied.rglob("__pycache__")), "files of the container's user would stay in the job's folder"


def test_a_build_s_own_python_settings_do_not_reach_the_scripts(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "shim").mkdir()
    for name in ("subprocess", "sitecustomize"):
        (tmp_path / "shim" / f"{name}.py").write_text("raise SystemExit(9)\n")
    argv = script_command(sys.executable, copied, copied / "job.json", "no-such-command")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "shim")}
    assert subprocess.run(argv, capture_output=True, check=False, cwd=tmp_path / "shim", env=env).returncode == 1
