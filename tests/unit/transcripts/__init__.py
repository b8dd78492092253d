"""What commands print, in one file for each command. `python -m tests.unit.transcripts` runs them and writes the files.

In a file, a line `% ...` prepares the next call: it is a line of sh, or one of those below. `$ buildfarm ...` is the
call. Its stdout and stderr follow, and the exit code in brackets. Each call starts in a new copy of the same project,
without network.

- `% buildfarm ...` is an earlier call, whose output is not shown;
- `% wheel NAME VERSION...` puts wheels with the proofs of one cell into dist/, `% untested` wheels without proofs;
- `% published NAME VERSION...` and `% published-untested ...` do the same in the index of the folder `index`.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder import log
from builder.__main__ import run_command
from builder.errors import Exit
from builder.proof import proofs_path
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.wheels.toolchain import machine
from tests.unit.publish.index.make import ready

FOLDER = Path(__file__).parent
#: A port that no server uses, so each request is refused at once.
_NOWHERE = "http://127.0.0.1:9/"
_PROJECT = {
    "matrix.yaml": "torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [ops]\n",
    "ops/extension.yaml": "name: ops\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [ops]\n",
    "ops/setup.py": "from setuptools import setup\n\nsetup(name='ops', version='1.0')\n",
    "FILE": "",
    "FOLDER/note.txt": "",
    "bad-1.0-py3-none-any.whl": "no zip archive",
}
_CALL = re.compile(
    r"(?P<before>(?:^% .+\n)*)^\$ (?P<command>.+)\n(?P<printed>(?:(?![%$] ).*\n)*?)\[(?P<code>\d+)\]$", re.M
)


def forget_machine() -> None:
    """Look at the machine anew: what was found once is kept for a process's life."""
    for cached in (machine.find_python, machine.nvcc_version, machine._compiler):
        cached.cache_clear()


@dataclass(frozen=True)
class Call:
    """A call of a transcript, and what it printed."""

    #: Lines of sh.
    before: tuple[str, ...]
    command: str
    printed: str = ""

    def __str__(self) -> str:
        return "".join(f"% {line}\n" for line in self.before) + f"$ {self.command}\n{self.printed}"


def calls_of(text: str) -> list[Call]:
    """The calls of a file."""
    return [
        Call(
            tuple(line.removeprefix("% ") for line in one["before"].splitlines()),
            one["command"],
            f"{one['printed']}[{one['code']}]\n",
        )
        for one in _CALL.finditer(text)
    ]


def run(call: Call) -> Call:
    """Run a call in this process, in a new project."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        project = root / "project"
        for name, text in _PROJECT.items():
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for line in call.before:
            _prepare(line, root)
        files = sorted(project.rglob("*"))
        with _alone(root), contextlib.chdir(project):
            code, out, err = call_in_process(shlex.split(call.command)[1:])
        if code == Exit.USAGE:
            assert sorted(project.rglob("*")) == files, f"{call.command}: a call with exit code 2 has written files"
    printed = out + err
    printed = named_places(printed, {str(project): "PROJECT", str(root): "ROOT"})
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return Call(call.before, call.command, f"{lines}[{code}]\n")


def named_places(text: str, places: Mapping[str, str]) -> str:
    """The text with a name for each place of this machine, and for the environment of this Python."""
    for place, name in {**places, sys.prefix: "ENVIRONMENT"}.items():
        text = text.replace(place, name)
    return re.sub(r"'(ENVIRONMENT/[\w./]+)'", r"\1", text)  # quoted, if the path of the environment has a space


def _prepare(line: str, root: Path) -> None:
    project = root / "project"
    match line.split():
        case ["buildfarm", *words]:
            with _alone(root), contextlib.chdir(project):
                call_in_process(words)
        case ["wheel" | "untested" | "published" | "published-untested" as kind, name, *versions]:
            for version in versions:
                folder = project / "dist" if kind in {"wheel", "untested"} else root / "wheels"
                made = ready(folder, name, version, proven="untested" not in kind)
                if kind == "wheel":
                    proofs_path(made.wheel).write_bytes(made.attached[".proofs.json"])
                elif kind != "untested":
                    Repository(Folder(project / "index")).add(made)
        case _:
            subprocess.run(["/bin/sh", "-c", line], cwd=project, check=True)


def call_in_process(arguments: list[str]) -> tuple[int, str, str]:
    """Run buildfarm in this process; return the exit code, stdout and stderr."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["buildfarm", *arguments]
    log._printed.clear()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command()
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Without the store, the programs, the container engine and the package index of this machine."""
    (root / "bin").mkdir(exist_ok=True)
    before = dict(os.environ)
    forget_machine()
    os.environ.clear()
    os.environ |= {
        "PATH": str(root / "bin"),
        "HOME": str(root),
        "BUILDFARM_STORE": str(root / "store"),
        "DOCKER_HOST": "tcp://127.0.0.1:9",
        "UV_DEFAULT_INDEX": _NOWHERE,
        "UV_HTTP_RETRIES": "0",
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
        forget_machine()


def renewed(text: str) -> str:
    """A file with what its calls print now; other lines are kept."""

    def again(found: re.Match[str]) -> str:
        (call,) = calls_of(found[0])
        return str(run(call)).rstrip("\n")

    return _CALL.sub(again, text)
