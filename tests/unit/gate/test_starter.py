"""The starter with a module in place of torch: what it forks, and when code of the wheel runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import builder

ROOT = Path(builder.__file__).parents[1]

#: Plays the scheduler: starts a starter for the roles of argv, and prints what each role has written.
SCHEDULER = """
import json, os, socket, subprocess, sys
root, site, program, *names = sys.argv[1:]
sys.path.insert(0, root)
from builder.gate.system import rlimits
rlimits.become_subreaper()
roles, events = [], {}
for name in names:
    os.mkdir(name)
    events[name], write = os.pipe()
    kept, commands = socket.socketpair()
    roles.append({"name": name, "commands": commands.detach(), "events": write, "folder": os.path.abspath(name)})
    kept.detach()
ends = [role[key] for role in roles for key in ("commands", "events")]
argv = [sys.executable, "-I", "-S", "-c", program, root, site, ".", str(os.getpid()), json.dumps(roles)]
status = subprocess.run(argv, pass_fds=ends).returncode
for one in ends:
    os.close(one)
told = {name: [json.loads(line) for line in os.fdopen(end)] for name, end in events.items()}
print(json.dumps([status, os.getpid(), told]))
"""

#: A starter whose roles report what they have, and which reports a new Python in place of starting it.
STARTER = """
import json, os, site, sys
sys.path.insert(0, sys.argv[1])
site.getsitepackages = lambda *_: [sys.argv[2]]
from builder.gate.imports.packages import execute_startup_code
from builder.gate import starter

def report(role, **found):
    found["parent"] = os.getppid()
    os.write(role["events"], json.dumps(found).encode() + b"\\n")
    os._exit(0)

def become(role, root, spec):
    import torch
    before = "hook" in sys.modules
    execute_startup_code()
    found = {"torch": torch.token, "numpy": torch.numpy, "before": before, "after": "hook" in sys.modules}
    report(vars(role), folder=os.getcwd(), **found)

def execute(path, command):
    [role] = json.loads(command[-1])
    report(role, executed=role["name"])

starter._become, os.execv = become, execute
starter._import_for_gradients = lambda: None
starter.main(sys.argv[3], int(sys.argv[4]), sys.argv[5])
"""

TORCH = """
import os
try:
    import numpy
except ModuleNotFoundError:
    numpy = None
token, numpy = os.getpid(), getattr(numpy, "__name__", "")
"""


def started(folder: Path, files: dict[str, str], *roles: str) -> tuple[int, int, dict[str, list[dict[str, Any]]]]:
    """Return the status of the starter, the pid of the scheduler, and the events of each role.

    `files` are those of the wheel `ops`.
    """
    site = folder / "site"
    (site / "ops-1.0.dist-info").mkdir(parents=True)
    info = {"ops-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n"}
    info["ops-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in [*files, *info, "ops-1.0.dist-info/RECORD"])
    for name, text in {**files, **info, "torch.py": TORCH}.items():
        (site / name).write_text(text)
    (folder / "spec.json").write_text(json.dumps({"name": "ops", "imports": ["ops"]}))
    argv = [sys.executable, "-c", SCHEDULER, str(ROOT), str(site), STARTER, *roles]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    status, scheduler, told = json.loads(done.stdout)
    return status, scheduler, told


HOOK = {"ops.py": "", "ops.pth": "import hook\n", "hook.py": ""}


def test_torch_is_imported_once_for_all_roles(tmp_path: Path) -> None:
    status, scheduler, told = started(tmp_path, HOOK, "judge", "plain")
    assert status == 0
    tokens = set()
    for name in ("judge", "plain"):
        forked, found = told[name]
        assert forked["event"] == "forked"
        assert found["parent"] == scheduler
        assert found["folder"] == str(tmp_path / name)
        tokens.add(found["torch"])
    assert len(tokens) == 1
    assert told["judge"][0]["pid"] != told["plain"][0]["pid"]


def test_code_of_the_wheel_at_the_start_of_python_waits(tmp_path: Path) -> None:
    _, _, told = started(tmp_path, HOOK, "judge", "plain")
    assert [told["plain"][1][key] for key in ("before", "after")] == [False, True]
    assert [told["judge"][1][key] for key in ("before", "after")] == [False, False], "the judge never imports it"


def test_a_single_role_is_the_starter_itself(tmp_path: Path) -> None:
    _, scheduler, told = started(tmp_path, HOOK, "heap-checks")
    [found] = told["heap-checks"]
    assert (found["parent"], found["after"]) == (scheduler, True)


@pytest.mark.parametrize("numpy", ["", "raise ImportError('broken')\n"], ids=["works", "raises"])
def test_a_torch_that_would_import_a_file_of_the_wheel_is_not_shared(tmp_path: Path, numpy: str) -> None:
    _, _, told = started(tmp_path, {**HOOK, "numpy.py": numpy}, "judge", "plain")
    for name in ("judge", "plain"):
        assert told[name][1]["executed"] == name


def test_without_a_judge_torch_imports_what_is_installed(tmp_path: Path) -> None:
    _, _, told = started(tmp_path, {**HOOK, "numpy.py": ""}, "plain")
    assert told["plain"][0]["numpy"] == "numpy"
