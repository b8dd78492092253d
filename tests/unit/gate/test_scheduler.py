"""The processes of the gate without torch: what the starter forks, and that each end is seen and no process left."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import builder
from builder.gate.coverage import no_cases
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Answer, Outcome, Spec
from builder.gate.processes.scheduler import Scheduler

ROOT = Path(builder.__file__).parents[1]


def command(ops: str) -> Callable[[Path, Sequence[Mapping[str, Any]]], list[str]]:
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.unit.gate.fake_fork_server import main; main()"
    return lambda _, roles: [sys.executable, "-c", script, json.dumps(roles), ops]


def gate(
    task_dir: Path,
    ops: str,
    checks: tuple[str, ...] = ("ops", "values"),
    *,
    seconds: float = 120.0,
    has_cases: bool = True,
    memory: int = 4 << 30,
    jobs: int = 2,
) -> Answer:
    spec = Spec("toy", ["toy"], has_cases=has_cases, checks=list(checks), seconds=seconds, memory=memory, jobs=jobs)
    return Scheduler(ROOT, spec, task_dir, command(ops)).run()


def values(answer: Answer, op: str, check: str = "values") -> Outcome:
    [found] = [one for one in answer.outcomes if one.check == check and one.op == op]
    return found


def test_every_op_runs_and_is_reported_in_order(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::b,ns::a", ("ops", "values", "fake"))
    assert answer.where == {"torch": "2.99", "gpus": [], "no_gpu": "no GPU in a test"}
    assert [(one.check, one.op) for one in answer.outcomes] == [
        (check, op) for check in ("ops", "values", "fake") for op in ("ns::b", "ns::a")
    ]
    assert {one.verdict for one in answer.outcomes} == {PASSED}


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("ns::gpu-driver-crashes", "looking for a GPU failed: the process dies with SIGSEGV"),
        ("ns::gpu-driver-hangs", "looking for a GPU took longer than 2 s: look whether `nvidia-smi` answers"),
    ],
)
def test_a_driver_that_crashes_or_hangs_is_not_a_missing_gpu(tmp_path: Path, op: str, reason: str) -> None:
    answer = gate(tmp_path, op, ("gpu-values",), seconds=1.0)
    outcome = values(answer, op, "gpu-values")
    assert outcome.verdict == NOT_RUN
    assert outcome.reason.startswith(reason)


def test_no_more_processes_use_the_gpu_than_it_has_memory_for(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::gpu-for-one", ("gpu-values", "gpu-stream", "gpu-graph"), jobs=3)
    assert {one.verdict for one in answer.outcomes} == {PASSED}
    assert answer.where == {"torch": "2.99", "gpus": [{"name": "small"}]}


def test_the_memory_of_all_processes_of_a_task_counts(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::good,ns::children", memory=300 << 20)
    assert values(answer, "ns::good").verdict == PASSED
    failure = values(answer, "ns::children")
    assert (failure.verdict, failure.evidence["limit"]) == (FAILED, "memory")
    assert "uses more than 300.0 MiB of memory" in failure.reason


def test_a_task_has_a_limit_of_processes(tmp_path: Path) -> None:
    failure = values(gate(tmp_path, "ns::good,ns::many"), "ns::many")
    assert (failure.verdict, failure.evidence["limit"]) == (FAILED, "processes")
    assert "has more than 256 processes at the same time" in failure.reason


#: What an op does, and a part of the reason that the gate gives.
CRASHES = {
    "ns::segv": "dies with SIGSEGV (a segmentation fault) (step: float32)",
    "ns::exits": "calls exit(0): remove this call",
    "ns::kills": "kills or stops its parent process",
    "ns::stops": "kills or stops its parent process",
    "ns::talks": "prints more than 64.0 MiB",
    "ns::stranger": "something other than the gate writes into the results",
    "ns::forks": "forks, and the child returns",
    "ns::wrong": "1 is not 2",
    "ns::loop": "does not end within 2 s",
}


#: In the judge, an op that kills or stops its parent ends the judge.
CRASHES_IN = [
    (kind, op)
    for kind in ("values", "fake", "judge")
    for op in CRASHES
    if kind != "judge" or "parent process" not in CRASHES[op]
]


@pytest.mark.parametrize(("kind", "op"), CRASHES_IN)
def test_an_op_that_crashes_is_named_and_the_others_go_on(tmp_path: Path, kind: str, op: str) -> None:
    """`fake` runs several cases in one process, the judge several results: what fails there is judged alone."""
    check, bad = ("values", f"judge-{op}") if kind == "judge" else (kind, op)
    others = ["ns::good", "ns::first", "ns::fine", "ns::last"]
    ops = ",".join([*others[:2], bad, *others[2:]])
    answer = gate(tmp_path, ops, (check,), seconds=2.0 if op == "ns::loop" else 120.0)
    assert len(answer.outcomes) == 5
    failure = values(answer, bad, check)
    assert failure.verdict == FAILED
    assert CRASHES[op] in failure.reason
    assert [one.op for one in answer.outcomes if one.verdict == PASSED] == others


def test_a_judge_that_ends_fails_what_it_has_not_judged(tmp_path: Path) -> None:
    # With two calls at a time, the judge may have judged one result before it gets the one that kills it.
    answer = gate(tmp_path, "ns::good,judge-ns::kills,ns::fine", ("values",), jobs=1)
    assert [one.verdict for one in answer.outcomes] == [FAILED] * 3
    assert {one.reason.partition(" dies")[0] for one in answer.outcomes} == {"the judge, which compares the results,"}


def test_one_process_of_the_judge_judges_several_results(tmp_path: Path) -> None:
    gate(tmp_path, "ns::good,ns::first,ns::fine,ns::last", ("values",), jobs=1)
    journals = [path.read_text().count('"done"') for path in tmp_path.glob("*/journal")]
    assert sum(journals) == 8, "four calls, and their four results"
    assert len(journals) == 6, "the search for a GPU, four calls, and one process of the judge"


def test_cases_share_a_process(tmp_path: Path) -> None:
    gate(tmp_path, "ns::good,ns::first,ns::fine,ns::last", ("fake",))
    journals = [path.read_text().count('"done"') for path in tmp_path.glob("*/journal")]
    assert sorted(journals) == [0, 2, 2], "the search for a GPU, and a process for each of two jobs"


def test_a_recipe_without_cases_fails_nothing_and_passes_nothing(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::uncased", has_cases=False)
    assert {(one.check, one.op, one.verdict, one.reason) for one in answer.outcomes} == {
        ("ops", "ns::uncased", NOT_RUN, no_cases("toy")),
        ("values", "", NOT_RUN, no_cases("toy")),
    }
    with_cases = tmp_path / "with-cases"
    with_cases.mkdir()
    assert FAILED in {one.verdict for one in gate(with_cases, "ns::uncased").outcomes}, "cases.py without a case fails"


def test_an_endless_op_runs_once(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::loop,ns::fine", ("values", "layouts", "repeat", "compile"), seconds=1.0)
    assert "does not end within 1 s" in values(answer, "ns::loop").reason
    others = [one for one in answer.outcomes if one.op == "ns::loop" and one.check != "values"]
    assert {(one.verdict, one.reason) for one in others} == {
        (NOT_RUN, "not run, because the case exceeded the time limit in the check 'values'")
    }


NO_TORCH = "ModuleNotFoundError: No module named 'torch'"


@pytest.mark.parametrize(
    ("op", "checks", "verdicts", "reason"),
    [
        ("dies", "ops values dispatch", [FAILED, NOT_RUN, NOT_RUN], "importing clashing dies with SIGSEGV.*"),
        ("no-torch", "ops import-order", [FAILED] * 2, f"importing torch raises {NO_TORCH}"),
        ("raises", "values", [FAILED, NOT_RUN], "import toy raises ImportError"),
    ],
)
def test_an_import_that_fails_is_an_outcome_whatever_was_selected(
    tmp_path: Path, op: str, checks: str, verdicts: list[str], reason: str
) -> None:
    answer = gate(tmp_path, op, tuple(checks.split()))
    assert {one.check for one in answer.outcomes} == {"ops", *checks.split()}
    assert answer.outcomes[0].check == "ops"
    assert [one.verdict for one in answer.outcomes] == verdicts
    assert all(re.fullmatch(reason, one.reason) for one in answer.outcomes if one.verdict == FAILED)


def test_a_fork_server_that_dies_under_heap_checks_fails_only_memory(tmp_path: Path) -> None:
    answer = gate(tmp_path, "dies-under-heap-checks", ("values", "memory"))
    assert values(answer, "dies-under-heap-checks").verdict == PASSED
    memory = [one for one in answer.outcomes if one.check == "memory"]
    assert [one.verdict for one in memory] == [FAILED, NOT_RUN]
    assert "under glibc's heap checks" in memory[0].reason


def test_a_fork_server_that_cannot_restart_ends_the_run(tmp_path: Path) -> None:
    answer = gate(tmp_path, "ns::kills-for-good,ns::fine,ns::good", ("values", "memory", "repeat"))
    assert any("importing clashing dies with SIGABRT" in one.reason for one in answer.outcomes)
    assert values(answer, "ns::kills-for-good").verdict != PASSED
    assert {one.check for one in answer.outcomes} == {"ops", "values", "memory", "repeat"}


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
    _, _, told = started(tmp_path, {**HOOK, "numpy.py": ""}, "judge", "plain", torch="import numpy\n")
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
