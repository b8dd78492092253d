"""The starter with a module in place of torch: what it forks, and when code of the wheel runs."""

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
roles, events, kept = [], {}, []
for name in names:
    os.mkdir(name)
    events[name], write = os.pipe()
    ours, commands = socket.socketpair()
    ours.send(b"go\\n")
    kept.append(ours)
    roles.append({"name": name, "commands": commands.detach(), "events": write, "folder": os.path.abspath(name)})
ends = [role[key] for role in roles for key in ("commands", "events")]
argv = [sys.executable, "-I", "-S", "-c", program, root, site, ".", str(os.getpid()), json.dumps(roles)]
status = subprocess.run(argv, pass_fds=ends).returncode
for one in ends:
    os.close(one)
told = {}
for name, end in events.items():
    told[name] = []
    for line in os.fdopen(end):
        told[name] += [json.loads(line)] if "importing" not in line else []
        ours = kept[names.index(name)]
        if '"ready"' in line:
            command = {"fork": 1, "task_dir": os.path.abspath(name), "order": ["torch", "ops"], "mode": "fork"}
            socket.send_fds(ours, [json.dumps(command).encode() + b"\\n"], [os.open(os.devnull, os.O_RDONLY)])
        elif '"ended"' in line:
            ours.close()
print(json.dumps([status, os.getpid(), told]))
"""

#: A starter whose roles report what they have. It does not start a new Python, but reports that.
STARTER = """
import importlib.machinery, json, os, site, sys, types
sys.path.insert(0, sys.argv[1])
site.getsitepackages = lambda *_: [sys.argv[2]]
from builder.gate import starter

def report(events, **found):
    os.write(events, json.dumps(found).encode() + b"\\n")
    os._exit(0)

def loaded():
    torch = sys.modules.get("torch")
    return {
        "parent": os.getppid(), "folder": os.getcwd(), "hook": "hook" in sys.modules,
        "torch": getattr(torch, "token", 0), "numpy": getattr(torch, "numpy", ""),
        "preloaded": "preloaded" in sys.modules,
    }

def fork_server(root, spec, commands, events, wait, *, heap_checks):
    before = loaded()["hook"]
    wait()
    report(events, before=before, **loaded())

def execute(path, command):
    [role] = json.loads(command[-1])
    report(role["events"], executed=role["name"], free=role["free"])

real = types.ModuleType("builder.gate.processes.extension_process")
real.main = fork_server
real.PRELOAD, real.import_all = ("preloaded",), lambda names: sys.modules.update(dict.fromkeys(names))

class ImportsTorch:  # like the real fork server
    def find_spec(self, name, path=None, target=None):
        if name == real.__name__:
            import torch
            sys.modules["builder.gate.processes"].extension_process = real
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        return real
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, ImportsTorch())
judge = types.ModuleType("builder.gate.processes.judge_process")
judge.main = lambda root, spec, commands, events: report(events, **loaded())
sys.modules[judge.__name__] = judge
execv = os.execv
os.execv = lambda path, command: (execute if "-S" in command else execv)(path, command)
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

#: A torch that does not work without numpy.
NEEDS_NUMPY = "import numpy\n"


def started(
    folder: Path, files: dict[str, str], *roles: str, torch: str = TORCH
) -> tuple[int, int, dict[str, list[Any]]]:
    """Return the status of the starter, the pid of the scheduler, and the events of each role.

    `files` are those of the wheel `ops`.
    """
    site = folder / "site"
    (site / "ops-1.0.dist-info").mkdir(parents=True)
    info = {"ops-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n"}
    info["ops-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in [*files, *info, "ops-1.0.dist-info/RECORD"])
    for name, text in {**files, **info, "torch.py": torch}.items():
        (site / name).write_text(text)
    spec = {"name": "ops", "imports": ["ops"], "has_cases": "judge" in roles}
    (folder / "spec.json").write_text(json.dumps(spec))
    argv = [sys.executable, "-c", SCHEDULER, str(ROOT), str(site), STARTER, *roles]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    status, scheduler, told = json.loads(done.stdout)
    return status, scheduler, told


HOOK = {"ops.py": "", "ops.pth": "import hook\n", "hook.py": ""}


def test_torch_is_imported_once_for_all_roles_and_code_of_the_wheel_waits(tmp_path: Path) -> None:
    status, scheduler, told = started(tmp_path, HOOK, "judge", "plain")
    assert status == 0
    for name in ("judge", "plain"):
        forked, found = told[name]
        assert forked["event"] == "forked"
        assert (found["parent"], found["folder"]) == (scheduler, str(tmp_path / name))
    judge, plain = told["judge"], told["plain"]
    assert judge[1]["torch"] == plain[1]["torch"]
    assert judge[0]["pid"] != plain[0]["pid"]
    assert [plain[1][key] for key in ("before", "hook", "preloaded")] == [False, True, True]
    assert not judge[1]["hook"], "the judge never imports it"


def test_a_single_role_waits_too(tmp_path: Path) -> None:
    _, scheduler, told = started(tmp_path, HOOK, "heap-checks")
    _, found = told["heap-checks"]
    assert (found["parent"], found["hook"]) == (scheduler, True)


def test_only_cases_need_what_gradients_import(tmp_path: Path) -> None:
    _, _, told = started(tmp_path, HOOK, "orders", "plain")
    assert not told["plain"][1]["preloaded"]


@pytest.mark.parametrize("numpy", ["", "raise ImportError('broken')\n"], ids=["works", "raises"])
@pytest.mark.parametrize("roles", [("judge", "plain"), ("heap-checks",)], ids=" and ".join)
def test_a_file_of_the_wheel_that_torch_imports_waits(tmp_path: Path, numpy: str, roles: tuple[str, ...]) -> None:
    _, _, told = started(tmp_path, {**HOOK, "numpy.py": numpy}, *roles)
    assert told[roles[-1]][-1] == {"executed": roles[-1], "free": True}, "a new Python imports torch with this file"
    if roles[0] == "judge":
        assert told["judge"][1]["numpy"] == ""


def test_a_torch_that_needs_a_file_of_the_wheel_fails_for_the_judge_alone(tmp_path: Path) -> None:
    _, _, told = started(tmp_path, {**HOOK, "numpy.py": ""}, "judge", "plain", torch=NEEDS_NUMPY)
    assert told["plain"][-1] == {"executed": "plain", "free": True}
    assert [one.get("event") for one in told["judge"]] == ["forked"]
    assert "numpy is a file of the wheel" in (tmp_path / "judge" / "log").read_text()


PRINTS = "import os, sys\nprint(os.getcwd(), 'builder' in sys.modules, len(os.listdir('/proc/self/fd')), flush=True)\n"


@pytest.mark.parametrize("files", [{}, HOOK, {"numpy.py": ""}], ids=["fork", "start-up file", "file of torch"])
def test_an_order_goes_on_in_a_fork_unless_a_new_python_would_differ(tmp_path: Path, files: dict[str, str]) -> None:
    """A new Python does not find the torch of this test. A fork has it, and no module and no descriptor of the gate."""
    _, _, told = started(tmp_path, {**files, "ops.py": PRINTS}, "orders")
    assert [one["event"] for one in told["orders"]] == ["forked", "ready", "started", "ended"]
    log = (tmp_path / "orders" / "log").read_text()
    assert ("No module named 'torch'" in log) == bool(files)
    assert files or f"{tmp_path / 'orders'} False 4\n" in log, "three outputs, and that of the folder"
