"""What commands print that build, test and publish. `python -m tests.real.transcripts` runs them and writes the files.

A file has the calls of one project, in order: each call sees what the earlier ones have made. The format is that of
`tests/unit/transcripts`. Times, sizes, dates and hashes are masked.
"""

import contextlib
import gc
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fixtures.small_project import SmallProject, small_project
from tests.unit.transcripts import Call, call_in_process, calls_of, forget_machine, named_places

FOLDER = Path(__file__).parent
#: What differs from run to run, and what stands for it.
_MASKS = (
    (r"\bPython \d+\.\d+\.\d+", "Python VERSION"),
    (r"\x1b\[[0-9;]*m", ""),
    (r"http://127\.0\.0\.1:\d+", "http://INDEX"),
    (r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN"),
    (r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?(?:\+00:00|Z)?)?", "DATE"),
    (r"\b[0-9a-f]{12,64}\b", "HASH"),
    (r"\b[\d.]+ (?:bytes|kB|KB|MB|GB|KiB|MiB|GiB)", "SIZE"),
    (r"\b[\d.]+ s\b", "TIME"),
    (r"\(\d+:\d\d\)", "(TIME)"),
    (r"\bin \d+:\d\d\b", "in TIME"),
    (r"cpython-\d+-x86_64", "cpython-PYTHON-x86_64"),
    (r"manylinux[\w.]+x86_64", "PLATFORM"),
    (r"buildfarm [0-9.]+(?:\.dev\d+)?\b", "buildfarm VERSION"),
)


def masked(text: str, root: Path) -> str:
    """What a call printed, without what differs from run to run."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    text = named_places(text, {str(root): "ROOT"})
    for pattern, name in _MASKS:
        text = re.sub(pattern, name, text)
    text = text.replace(python, "PYTHON").replace(f"cp{python.replace('.', '')}", "cpPYTHON")
    return "".join(f"{re.sub(r'  +', '  ', line).rstrip()}\n" for line in text.splitlines())


def played(text: str) -> str:
    """The calls of a file with what they print now, in a new project."""
    calls = calls_of(text)
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as monkeypatch,
        small_project(Path(folder).resolve() / "project", monkeypatch) as project,
        contextlib.chdir(project.root),
    ):
        monkeypatch.setenv("BUILDFARM_STORE", str(project.store))
        monkeypatch.setenv("COLUMNS", "200")  # of a line without a terminal
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("LC_ALL", "C.UTF-8")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        forget_machine()
        try:
            return "\n".join(str(_run(call, project)) for call in calls)
        finally:
            forget_machine()


def _run(call: Call, project: SmallProject) -> Call:
    for line in call.before:
        if line.startswith("recipe "):
            name, _, source = line.removeprefix("recipe ").partition(" ")
            project.recipe(name, source=source or None)
        elif line.startswith("matrix "):
            project.matrix(*line.split()[1:])
        else:
            subprocess.run(["/bin/sh", "-c", line], cwd=project.root, check=True)
    words = [
        match for word in shlex.split(call.command)[1:] for match in (sorted(map(str, Path().glob(word))) or [word])
    ]
    gc.collect()  # the store of the call before, which is in use as long as it exists
    code, out, err = call_in_process(words)
    return Call(call.before, call.command, f"{masked(out + err, project.root.parent)}[{code}]\n")
