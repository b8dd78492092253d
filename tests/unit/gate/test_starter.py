"""The starter with a module in place of torch: when code of the wheel runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import builder
from builder.gate.processes import spawn

ROOT = Path(builder.__file__).parents[1]

#: A starter that has been allowed to import the extension, and reports what it has. It starts no new Python, but
#: reports that.
STARTER = """
import importlib.machinery, json, os, site, socket, sys, types
root, site_packages, folder, role = sys.argv[1:]
sys.path.insert(0, root)
site.getsitepackages = lambda *_: [site_packages]
from builder.gate import starter

def report(**found):
    torch = sys.modules.get("torch")
    print(json.dumps({"hook": "hook" in sys.modules, "numpy": getattr(torch, "numpy", ""), **found}), flush=True)
    os._exit(0)

def fork_server(root, spec, commands, events, wait, *, heap_checks):
    before = "hook" in sys.modules
    wait()
    report(before=before, heap_checks=heap_checks)

real = types.ModuleType("builder.gate.processes.fork_server")
real.main = fork_server

class ImportsTorch:  # like the real fork server
    def find_spec(self, name, path=None, target=None):
        if name == real.__name__:
            import torch
            sys.modules["builder.gate.processes"].fork_server = real
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        return real
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, ImportsTorch())
judge = types.ModuleType("builder.gate.processes.judge_process")
judge.main = lambda *_: report()
sys.modules[judge.__name__] = judge
os.execv = lambda path, command: report(executed=command[-4], free=command[-1])
ours, theirs = socket.socketpair()
ours.send(b"go\\n")
starter.main(folder, role, theirs.fileno(), os.open(os.devnull, os.O_WRONLY), 0)
"""

TORCH = """
try:
    import numpy
except ModuleNotFoundError:
    numpy = None
numpy = getattr(numpy, "__name__", "")
"""

#: A torch that does not work without numpy.
NEEDS_NUMPY = "import numpy\n"


def started(folder: Path, files: dict[str, str], role: str, torch: str = TORCH) -> tuple[dict[str, Any], str]:
    """Return what the starter of this role reports, and its errors; `files` are those of the wheel `ops`."""
    site = folder / "site"
    (site / "ops-1.0.dist-info").mkdir(parents=True)
    info = {"ops-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n"}
    info["ops-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in [*files, *info, "ops-1.0.dist-info/RECORD"])
    for name, text in {**files, **info, "torch.py": torch}.items():
        (site / name).write_text(text)
    (folder / "spec.json").write_text(json.dumps({"name": "ops", "imports": ["ops"]}))
    argv = [sys.executable, "-I", "-S", "-c", STARTER, str(ROOT), str(site), str(folder), role]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return json.loads(done.stdout or "{}"), done.stderr


HOOK = {"ops.py": "", "ops.pth": "import hook\n", "hook.py": ""}


@pytest.mark.parametrize("role", ["plain", "heap-checks"])
def test_code_of_the_wheel_waits_until_it_is_allowed(tmp_path: Path, role: str) -> None:
    found, _ = started(tmp_path, HOOK, role)
    assert found == {"hook": True, "numpy": "", "before": False, "heap_checks": role == "heap-checks"}


def test_the_judge_never_executes_code_of_the_wheel(tmp_path: Path) -> None:
    assert started(tmp_path, {**HOOK, "numpy.py": ""}, "judge")[0] == {"hook": False, "numpy": ""}


@pytest.mark.parametrize("torch", [TORCH, NEEDS_NUMPY])
@pytest.mark.parametrize("numpy", ["", "raise ImportError('broken')\n"], ids=["works", "raises"])
def test_a_file_of_the_wheel_that_torch_imports_waits(tmp_path: Path, numpy: str, torch: str) -> None:
    found, _ = started(tmp_path, {**HOOK, "numpy.py": numpy}, "plain", torch)
    assert (found["executed"], found["free"]) == ("plain", "1"), "a new Python imports torch with this file"


def test_a_torch_that_needs_a_file_of_the_wheel_fails_for_the_judge(tmp_path: Path) -> None:
    found, said = started(tmp_path, {**HOOK, "numpy.py": ""}, "judge", NEEDS_NUMPY)
    assert found == {}
    assert "numpy is a file of the wheel" in said


def test_the_check_of_import_orders_starts_without_code_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of a `.pth` file could read the key of its journal."""
    commands: list[list[str]] = []
    monkeypatch.setattr(spawn.Process, "__init__", lambda _, __, command, *___: commands.append(command))
    spawn.ImportOrderProcess(ROOT, tmp_path)
    assert "-S" in commands[0][: commands[0].index("-c")]
