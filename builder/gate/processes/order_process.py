"""The process of import orders: a fork server that has imported torch and nothing of a wheel, and forks each order.

An order that begins with torch goes on in the fork. For any other order, and where a fork would differ from a new
Python, the fork becomes a new Python.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from builder.gate.imports.packages import execute_startup_code
from builder.gate.outcome import Spec
from builder.gate.processes.fork_server import serve
from builder.gate.processes.servers import GO
from builder.gate.system import rlimits
from builder.gate.system.process_end import FATAL

#: How an order runs: in a fork if that is possible, in a new Python, or in a new Python with crash handlers.
FORK, NEW, WATCH = "fork", "new", "watch"
#: Prefixes of the lines that the process of an order prints.
STEP, CALLED = "buildfarm-step ", "buildfarm-called "
#: Modules that stay in memory, such as the one with the stack of the crash handlers.
_kept: list[Any] = []

#: Imports the gate after the last module, because the gate imports torch.
_PROGRAM = f"""\
import importlib, json, os, sys
root, names, mode = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
if mode == "{WATCH}":
    sys.path.insert(0, root)
    from builder.gate.system.process_end import install_crash_handlers
    sys.path.remove(root)
    install_crash_handlers()
for name in names:
    os.write(2, ("\\n{STEP}import " + name + "\\n").encode())
    importlib.import_module(name)
sys.path.insert(0, root)
from builder.gate.imports.cases_file import call_first
os.write(2, b"\\n{STEP}call\\n")
called = call_first(root, lambda op: os.write(2, ("\\n{STEP}call " + op + "\\n").encode()))
os.write(2, ("\\n{CALLED}" + called + "\\n").encode())
os._exit(0)
"""


def main(root: str, spec: Spec, commands: int, events: int, *, forks: bool) -> None:
    """Wait until code of the wheel may run, and serve. The starter has imported torch. Does not return.

    `forks` is whether an order that begins with torch may go on in a fork.
    """
    if os.read(commands, len(GO)) != GO:  # the scheduler has ended
        os._exit(1)
    if forks:
        execute_startup_code()
        forks = rlimits.threads(os.getpid()) == 1  # threads of a `.pth` file do not survive a fork
    modules = {companion: _module_of(companion) for companion in spec.companions}
    names = ["torch", *spec.needs_first, *spec.imports, *filter(None, modules.values())]
    facts = {"modules": modules, "versions": {name: _version_of(name) for name in names}}
    serve(commands, events, partial(_run_child, root, forks), facts)


def _run_child(root: str, forks: bool, command: Mapping[str, Any], _: int) -> int:
    """Import the modules of an order in this child, and call an op."""
    # Code of a wheel must not reach the key, or the pipes of the fork server.
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # noqa: PTH208
    os.chdir(command["task_dir"])
    os.environ["TMPDIR"] = command["task_dir"]
    arguments = ["-c", root, json.dumps(command["order"]), command["mode"]]
    if not forks or command["mode"] != FORK:
        argv = [sys.executable, "-I", "-X", "faulthandler", "-c", _PROGRAM, *arguments[1:]]
        os.execv(argv[0], argv)  # noqa: S606 (this Python)
    _become_like_new()
    sys.argv = arguments
    exec(compile(_PROGRAM, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 (the gate's own)
    return 1  # the program exits


def _become_like_new() -> None:
    """Become like a new Python after `import torch`."""
    for number in FATAL:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(2)
    sys.path.pop(0)  # the folder of the gate
    own = [name for name in sys.modules if name.partition(".")[0] == "builder"]
    _kept.extend(sys.modules.pop(name) for name in own)  # a wheel may have a package of this name
    gc.enable()


def _module_of(distribution: str) -> str | None:
    """Return the module name of a distribution, or None if it is not installed."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return distribution if distribution.isidentifier() and find_spec(distribution) else None
    top = (found.read_text("top_level.txt") or "").split()
    roots = [path.parts[0] for path in found.files or () if len(path.parts) > 1 and path.name == "__init__.py"]
    name = re.sub(r"[-.]+", "_", distribution)
    names = [one for one in (*top, *roots) if one.isidentifier() and not one.startswith("_")]
    return name if name in names or not names else names[0]


def _version_of(module: str) -> str:
    """Return the version of a module's distribution, or ""."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(module.partition(".")[0])
    return ""
