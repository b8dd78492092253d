"""The jobs of a run and their order, the outcome of import orders, journals, GPUs, and facts of the system."""

import functools
import itertools
import mmap
import os
import signal
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from builder.gate.check_table import CHECKS
from builder.gate.coverage import CaseFacts
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.import_order import ImportOrders, OrderRun, allowed_order, orders_of
from builder.gate.processes.jobs import INSIDE, OUTPUT_BYTES, SEND, Job, Queue, plan
from builder.gate.processes.journal import LOG, Journal, TaskRecord, new_key, read
from builder.gate.processes.order_process import FORK, NEW, WATCH
from builder.gate.processes.servers import JUDGE, PLAIN
from builder.gate.processes.verdicts import compare_bits, job_outcomes
from builder.gate.system import nvidia
from builder.gate.system.files import mapped_files, read_regular
from builder.gate.system.nvidia import (
    hidden_gpus,
    hide_gpus,
    may_have_gpu,
    read_sanitizer,
    sanitizer_command,
    smi_rows,
)
from builder.gate.system.process_end import ProcessExit, tail
from tests.conftest import ROOT, is_running, wait_until

CASE = CaseFacts(0, "ns::op", "plain")


def planned(*cases: CaseFacts, no_gpu: str = "no GPU") -> tuple[set[str], dict[str, str]]:
    tasks, outcomes = plan(Spec("toy", ["toy"]), cases, no_gpu)
    assert {one.verdict for one in outcomes} <= {NOT_RUN}
    return {task.check.name for task in tasks}, {one.check: one.reason for one in outcomes}


def test_without_a_gpu_its_checks_are_not_run() -> None:
    tasks, skipped = planned(CASE)
    assert {"values", "memory", "compile", "fake", "dispatch"} <= tasks
    assert skipped == dict.fromkeys((name for name in CHECKS if name.startswith("gpu-")), "no GPU")
    tasks, skipped = planned(CASE, no_gpu="")
    assert "gpu-graph" in tasks
    assert not skipped


def test_a_check_that_a_case_does_not_claim_is_not_run() -> None:
    tasks, skipped = planned(CaseFacts(0, "ns::op", "plain", not_claimed={"fake": "upstream has none"}))
    assert "fake" not in tasks
    assert skipped["fake"] == "not claimed: upstream has none"


def test_an_edge_case_runs_in_edges_and_not_in_values() -> None:
    tasks, _ = planned(CaseFacts(0, "ns::op", "none", edge="empty"))
    assert {"edges", "fake", "memory"} <= tasks
    assert not {"values", "layouts", "compile"} & tasks


def test_checks_that_skip_edge_cases_are_not_run_for_an_op_with_edge_cases_only() -> None:
    edge = CaseFacts(0, "ns::op", "none", edge="empty")
    _, skipped = planned(edge)
    assert {skipped[check] for check in ("values", "layouts", "repeat", "compile", "export")} == {
        "every case of this op is an edge case: add a case without `edge`"
    }
    _, skipped = planned(edge, CaseFacts(1, "ns::op.default", "plain"), no_gpu="")
    assert not skipped


def test_an_op_without_a_cpu_kernel_runs_on_the_gpu_or_is_not_run() -> None:
    only = CaseFacts(0, "ns::op", "plain", devices=("cuda",))
    tasks, skipped = planned(only)
    assert tasks == {"dispatch", "devices"}
    assert skipped["values"] == "no GPU"
    tasks, skipped = planned(only, no_gpu="")
    assert "values" in tasks
    assert skipped["memory"] == "the check runs on CPU, and the case says that the op has no CPU kernel"


def test_a_case_that_excludes_the_cpu_is_named_if_the_op_has_a_cpu_kernel() -> None:
    stale = CaseFacts(0, "ns::op", "plain", devices=("cuda",), cpu_kernel=True)
    _, skipped = planned(stale)
    cure = "but the op has a CPU kernel: remove `devices` from its cases in cases.py"
    cure = f'the case says devices=["cuda"], {cure}'
    assert skipped["values"] == skipped["memory"] == cure
    assert skipped["gpu-values"] == "no GPU"
    tasks, skipped = planned(stale, no_gpu="")
    assert "values" in tasks, "on the GPU"
    assert skipped["memory"] == cure


def test_an_op_that_is_missing_is_not_run() -> None:
    tasks, skipped = planned(CaseFacts(0, "ns::gone", "plain", missing="no op of this name is registered"))
    assert tasks == {"dispatch"}
    assert skipped["values"] == "no op of this name is registered"


def job(name: str, number: int = 0, *, side_effects: bool = False, device: str = "cpu") -> Job:
    return Job(CHECKS[name], (CaseFacts(number, "ns::op", str(number), side_effects=side_effects),), device, data=("",))


def taken(queue: Queue, role: str = PLAIN, **state: bool) -> tuple[str, list[int]]:
    """The check and the cases of the next job; ("", []) if none can start."""
    found = queue.take(role, **state)
    return (found.check.name, [one.number for one in found.cases]) if found else ("", [])


def test_the_quick_check_of_a_case_runs_before_the_others() -> None:
    quick = job("values")
    queue = Queue([job("compile"), quick])
    assert taken(queue) == ("values", [0])
    assert taken(queue) == ("", [])
    quick.exclusive = True  # its fork server has ended while several jobs were running
    queue.put_back([quick])
    assert taken(queue) == ("", [])
    assert taken(queue, idle=True) == ("values", [0])
    assert queue.done(quick) == []
    assert taken(queue) == ("compile", [0])
    assert not queue


def test_cases_of_a_tracing_check_share_a_process() -> None:
    others = [job("export", 3, side_effects=True), job("export", 4, device="cuda"), job("opcheck")]
    queue = Queue([*(job("export", one) for one in range(3)), *others], processes=2)
    assert taken(queue) == ("export", [0, 1, 2]), "half of the five that may share a process, rounded up"
    assert [taken(queue) for _ in range(3)] == [("export", [3]), ("export", [4]), ("opcheck", [0])]


@pytest.mark.parametrize("check", ["values", "edges", "repeat", "memory"])
def test_a_check_of_results_has_a_process_for_each_case(check: str) -> None:
    jobs = [job(check), job(check, 1)]
    assert taken(Queue(jobs), jobs[0].role) == (check, [0])


def test_the_judge_waits_for_all_results_and_compares_those_of_a_check_in_one_process() -> None:
    jobs = [job("values", one) for one in range(3)]
    for one in jobs:
        one.phase = SEND
    queue = Queue(jobs)
    assert taken(queue) == ("values", [0])
    jobs[0].phase = jobs[1].phase = JUDGE
    queue.put_back(jobs[:1])
    assert taken(queue, JUDGE) == ("", [])
    assert taken(queue) == ("values", [2])
    assert taken(queue, JUDGE) == ("values", [0, 1])


def test_a_compilation_that_hangs_drops_no_jobs() -> None:
    queue, hangs = Queue([job("compile"), job("layouts")]), job("compile")
    hangs.limit = "time"
    assert queue.done(hangs) == []
    assert queue


def test_different_bits_in_a_second_process_fail_repeat() -> None:
    def outcome(check: str, bits: str) -> Outcome:
        return Outcome(check, "ns::op", "plain", PASSED, evidence={"bits": {"float32": bits}})

    assert [one.verdict for one in compare_bits([outcome("repeat", "a"), outcome("memory", "a")])] == [PASSED, PASSED]
    assert [one.verdict for one in compare_bits([outcome("repeat", "a"), outcome("memory", "b")])] == [FAILED, PASSED]


@pytest.mark.parametrize("phase", [SEND, INSIDE])
def test_a_process_that_printed_too_much_and_ended_before_it_was_killed(tmp_path: Path, phase: str) -> None:
    """In the phase SEND the process reports no verdict: its results go to the judge."""
    with (tmp_path / LOG).open("wb") as stream:
        stream.truncate(OUTPUT_BYTES + 1)
    reported = [] if phase == SEND else [Outcome("values", "ns::op", "0", "passed")]
    ended = job("values")
    ended.folder, ended.phase, ended.record = tmp_path, phase, TaskRecord(ended=True, outcomes=reported)
    *_, last = job_outcomes(ended)
    assert last.verdict == FAILED
    assert "prints more than 64.0 MiB" in last.reason


NAMES = ("torch", "toy")


def outcome_of(runs: list[OrderRun], spec: Spec) -> Outcome:
    orders = ImportOrders(spec, {}, {})
    for run in runs:
        orders.add(run, NEW)
    [found] = orders.outcomes()
    return found


def judged(*called: str, printed: str = "") -> Outcome:
    """The outcome of orders that all succeed, each with the op that returned."""
    runs = [
        OrderRun(order, 0, f"{printed}\nbuildfarm-called {op}\n")
        for order, op in zip((NAMES, NAMES[::-1]), called, strict=True)
    ]
    return outcome_of(runs, Spec("toy", ["toy"], has_cases=any(called)))


def test_orders_that_call_the_same_op_pass_whatever_an_import_prints() -> None:
    assert judged("toy::op", "toy::op", printed="apex not found").verdict == PASSED
    none = judged("", "", printed="hello")
    assert (none.verdict, none.reason.partition(",")[0]) == (NOT_RUN, "no case could be called after the imports")


def test_an_op_that_returns_in_only_one_order_fails() -> None:
    found = judged("toy::op", "")
    assert found.verdict == FAILED
    assert found.reason.startswith("the import order changes which op is the first that works: ")
    assert "after torch, toy: toy::op; after toy, torch: none, every op raises" in found.reason


LIBC10 = "ImportError: libc10.so: cannot open shared object file: No such file or directory"
TWICE = "RuntimeError: Only a single TORCH_LIBRARY can be used to register the namespace _C; please put all of your"
GOOD = OrderRun(NAMES, 0, "\nbuildfarm-called toy::op\n")


def raises(order: tuple[str, ...], error: str) -> OrderRun:
    trace = f"buildfarm-step import toy\nTraceback (most recent call last):\n  File x\n{error}\nmore text\n"
    return OrderRun(order, 1 << 8, trace)


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        pytest.param(
            [OrderRun(NAMES, 6, "buildfarm-step import torch\n", ProcessExit(6, "time", "180 s"))],
            ["does not end within 180 s"],
            id="three times the limit of a case",
        ),
        pytest.param(
            [GOOD, raises(NAMES[::-1], LIBC10)],
            [LIBC10, "only if torch is not imported before toy", "`needs_first: [torch]`"],
            id="a module that imports only after torch",
        ),
        pytest.param(
            [raises(NAMES, TWICE)],
            ["two libraries have `TORCH_LIBRARY(_C, m)`; rename the namespace in one"],
            id="one namespace in two libraries",
        ),
    ],
)
def test_an_order_that_fails_is_told_with_the_cure(runs: list[OrderRun], parts: list[str]) -> None:
    found = outcome_of(runs, Spec("toy", ["toy"]))
    assert found.verdict == FAILED
    assert [part for part in parts if part not in found.reason] == []


def test_an_order_that_fails_in_a_fork_runs_in_a_new_python_and_a_crash_once_more_for_its_stacks() -> None:
    orders = ImportOrders(Spec("toy", ["toy"]), {"apex": None}, {"toy": "1.0"})
    modes = {one.order: one.mode for one in (orders.take(), orders.take()) if one}
    assert modes == {NAMES: FORK, NAMES[::-1]: NEW}
    assert [one.mode for one in orders.add(OrderRun(NAMES, 1 << 8, ""), FORK)] == [NEW]
    orders.add(GOOD, NEW)
    orders._left = 1
    crash = OrderRun(NAMES[::-1], signal.SIGSEGV, "buildfarm-step import toy\n")
    assert [(one.order, one.mode) for one in orders.add(crash, NEW)] == [(NAMES[::-1], WATCH)]
    missing, found = orders.outcomes()
    assert (missing.case, missing.verdict) == ("apex", NOT_RUN)
    assert found.reason.startswith("toy 1.0: import toy dies with SIGSEGV (a segmentation fault)")
    assert found.reason.endswith("; the order torch, toy works")


def test_modules_of_needs_first_precede_the_extension() -> None:
    spec = Spec("toy", ["toy", "toy.more"], needs_first=["torch"])
    assert allowed_order(("toy", "numpy", "torch", "toy.more"), spec) == ("torch", "toy", "numpy", "toy.more")
    assert allowed_order(("torch", "toy.more", "toy"), spec) == ("torch", "toy.more", "toy")
    listed = Spec("toy", ["torch", "toy"], needs_first=["torch"])
    assert allowed_order(("toy", "torch"), listed) == ("torch", "toy")


def test_orders_have_each_pair_and_each_module_first_with_torch_at_the_end() -> None:
    names = ["t", "a", "b"]
    assert set(orders_of(names)) == set(itertools.permutations(names))
    assert set(orders_of(names[:2])) == {("t", "a"), ("a", "t")}
    orders = list(orders_of([*names, "c"]))
    assert {order[0] for order in orders if order[-1] == "t"} == {"a", "b", "c"}
    pairs = {order[:2] for order in orders}
    assert len(pairs) == 12


KEY = new_key()
DONE = Outcome("values", "ns::op", "plain", PASSED, "2 dtypes")


def test_an_incomplete_line_and_a_missing_file_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert not read(path, KEY).ended
    Journal(str(path), KEY).step("x")
    with path.open("ab") as file:
        file.write(b'{"end": tr')
    record = read(path, KEY)
    assert (record.step, record.ended, record.foreign) == ("x", False, False)


@pytest.mark.parametrize(
    "line",
    [
        b'{"end": true}\n',
        b"\xff\xfe\n",
        b"[]\n",
        b"0" * 64 + b' 1 {"end": true}\n',
        b"0" * 64 + b' x {"end": true}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_line_without_the_key_is_noticed(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal"
    journal = Journal(str(path), KEY)
    journal.add(outcome=vars(DONE))
    with path.open("ab") as file:
        file.write(line)
    journal.add(end=True)
    record = read(path, KEY)
    assert record.foreign
    assert not record.ended


def test_lines_cannot_be_repeated_left_out_or_taken_from_another_task(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(str(path), KEY)
    journal.step("x")
    journal.add(outcome=vars(DONE))
    journal.add(end=True)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for changed in (first + first, first + third, second + third, first + second + third + third):
        path.write_bytes(changed)
        assert read(path, KEY).foreign
    path.write_bytes(first + second + third)
    assert not read(path, KEY).foreign
    assert read(path, new_key()).foreign


def test_a_copy_of_the_process_records_itself_and_exits(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"), KEY)
    pid = os.fork()
    if pid == 0:
        journal.add(end=True)
        os._exit(9)  # not reached
    assert os.waitpid(pid, 0)[1] == 0
    record = read(tmp_path / "journal", KEY)
    assert record.forked
    assert not record.ended


def test_a_mapped_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "with a space.so"
    path.write_bytes(b"x")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert str(path) in mapped_files()
    assert str(path) not in mapped_files()


def test_the_start_or_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 4) == b"0123"
    assert read_regular(tmp_path / "file", 4, end=True) == b"6789"
    tracemalloc.start()
    assert read_regular(tmp_path / "file", 4 << 30, end=True) == b"0123456789"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20, "a large limit takes no memory"
    tracemalloc.stop()
    assert tail(tmp_path / "missing") == ""
    (tmp_path / "log").write_bytes(b"\xff" * 10 + b"end")
    assert tail(tmp_path / "log", 4) == "\ufffdend"


def test_pipes_devices_and_links_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "other").symlink_to(tmp_path / "file")
    for name in ("pipe", "link", "other", "missing"):
        with pytest.raises(OSError):  # noqa: PT011 (the kernel's message)
            read_regular(tmp_path / name, 10)
        assert read(tmp_path / name, KEY).foreign == (name != "missing"), "no journal is no forged one"


THROWS = "terminate called after throwing an instance of"


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ProcessExit(signal.SIGSEGV, frame="f of lib.so"), "dies with SIGSEGV (a segmentation fault) in f of lib.so"),
        (ProcessExit(signal.SIGABRT), "dies with SIGABRT (abort())"),
        (ProcessExit(signal.SIGABRT, log="free(): invalid pointer\n"), "glibc aborts with 'free(): invalid pointer'"),
        (ProcessExit(signal.SIGABRT, log="double free or corruption (out)\n"), "'double free or corruption (out)'"),
        (
            ProcessExit(signal.SIGABRT, log=f"{THROWS} 'std::bad_alloc'\n  what():  x\n"),
            "allocates more memory than allowed and does not catch std::bad_alloc",
        ),
        (
            ProcessExit(signal.SIGABRT, log=f"{THROWS} 'Oops'\n  what():  too late\n"),
            "dies of an uncaught C++ exception: Oops (too late)",
        ),
        (ProcessExit(signal.SIGKILL), "killed by the kernel when memory ran out"),
        (ProcessExit(40), "dies with signal 40"),
    ],
)
def test_the_end_of_a_process_is_a_sentence(end: ProcessExit, text: str) -> None:
    assert text in end.sentence()


def test_evidence_has_the_innermost_python_frame() -> None:
    stack = 'Thread 0x1 (most recent call first):\n  File "/a/op.py", line 7 in call\n  File "/b.py", line 1 in x\n'
    evidence = ProcessExit(signal.SIGSEGV, stack=stack, log="hello").evidence()
    assert evidence == {"signal": "SIGSEGV", "stack": stack, "frame": "/a/op.py:7 in call", "printed": "hello"}


def python(code: str) -> str:
    """What a new Python prints."""
    head = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from builder.gate.system import rlimits\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False).stdout


def test_memory_is_limited_until_the_limit_is_removed() -> None:
    refused = "rlimits.limit_added_memory(64 << 20)\ntry: bytearray(100 << 30)\nexcept MemoryError: print('refused')\n"
    assert python(refused) == "refused\n"
    assert python("rlimits.limit_added_memory(256 << 20)\nprint(len(bytearray(64 << 20)))") == f"{64 << 20}\n"
    removed = "rlimits.limit_added_memory(16 << 20)\nrlimits.remove_memory_limit()\nprint(len(bytearray(64 << 20)))"
    assert python(removed) == f"{64 << 20}\n"


def test_a_process_dies_with_its_parent() -> None:
    code = (
        "import os, time\nparent = os.getpid()\nreader, writer = os.pipe()\npid = os.fork()\n"
        "if pid == 0:\n    rlimits.exit_with_parent(parent)\n    os.close(1)\n    os.close(2)\n"
        "    os.write(writer, b'1')\n    time.sleep(600)\n"
        "os.read(reader, 1)\nprint(pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    pid = int(python(code))  # the child has closed the pipe that this reads
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(pid)
        wait_until(lambda: not is_running(child), "the end of the child")


TWO = """\
NVIDIA H100 80GB HBM3, 580.65.06, Default
NVIDIA H100 80GB HBM3, [N/A], Prohibited
"""
MEMCHECK = """\
========= COMPUTE-SANITIZER
something the program printed
========= Invalid __global__ write of size 4 bytes
=========     at void add<float>(float *, long)+0x70 in add.cu:12
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x7f2b5be00080 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2b5be00000 of size 128 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x7ff]
=========
========= Invalid __global__ read of size 2 bytes
=========     at read()+0x10
=========     by thread (0,0,0) in block (1,0,0)
=========     Address 0x0 is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""


def test_processes_at_the_same_time() -> None:
    rows = smi_rows(TWO)
    assert nvidia.most_processes(78 << 30, rows[:1]) == 78
    assert nvidia.most_processes(100 << 20, rows[:1]) == 1
    assert nvidia.most_processes(78 << 30, rows) == 1, "a mode that allows one process, or none"
    assert nvidia.most_processes(8 << 30, []) == 8, "no nvidia-smi"


def test_why_there_is_no_gpu() -> None:
    rows = smi_rows(TWO)
    assert nvidia.why_no_gpu("13.0", "", []) == "no GPU on this machine"
    assert nvidia.why_no_gpu("13.0", "RuntimeError: Found no NVIDIA driver", []) == "no GPU on this machine"
    assert nvidia.why_no_gpu(None, "", []) == "this torch is a CPU build, which cannot use a GPU"
    assert nvidia.why_no_gpu(None, "", rows).endswith("the NVIDIA H100 80GB HBM3 that nvidia-smi finds")
    old = nvidia.why_no_gpu("13.0", "RuntimeError: The NVIDIA driver on your system is too old", rows)
    assert old == (
        "nvidia-smi finds NVIDIA H100 80GB HBM3 (driver 580.65.06), but torch (CUDA 13.0) does not: "
        "RuntimeError: The NVIDIA driver on your system is too old"
    )
    assert nvidia.why_no_gpu("13.0", "", rows).endswith("does not; check CUDA_VISIBLE_DEVICES")


def test_nvidia_smi_may_be_missing_or_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.smi() == []
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in --query-gpu=name,driver_version,*) ;; *) exit 2;; esac\ncat <<X\n{TWO}X\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [row.get("driver_version") for row in nvidia.smi()] == ["580.65.06", None]
    assert smi_rows("Failed to initialize NVML: Driver/library mismatch\n") == []
    program.write_text(f"#!/bin/sh\ncat <<X\n{TWO}X\nexit 9\n")
    assert nvidia.smi() == []
    program.write_text(f"#!/bin/sh\ncat <<X\n{TWO}X\nexit 14\n")
    assert len(nvidia.smi()) == 2, "the infoROM of a GPU is corrupted"


def test_compute_sanitizer_is_found_on_the_path_or_in_the_toolkit(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    command = sanitizer_command(["python", "x"], {"PATH": "/nowhere", "CUDA_HOME": str(tmp_path)})
    assert command
    assert (command[0], command[-2:]) == (str(program), ["python", "x"])


WRITE = (
    "Invalid __global__ write of size 4 bytes at void add<float>(float *, long)+0x70 in add.cu:12 "
    "by thread (31,0,0) in block (0,0,0) Address 0x7f2b5be00080 is out of bounds"
)
READ = (
    "Invalid __global__ read of size 2 bytes at read()+0x10 by thread (0,0,0) in block (1,0,0) "
    "Address 0x0 is out of bounds"
)
OWN = "Internal Sanitizer Error: The Sanitizer encountered an error while launching add"
HEAD = "========= COMPUTE-SANITIZER\n"


@pytest.mark.parametrize(
    ("text", "report"),
    [
        pytest.param(MEMCHECK, (2, [WRITE, READ], ""), id="error, location and thread"),
        pytest.param(
            MEMCHECK.replace("Invalid __global__ write of size 4 bytes", OWN),
            (2, [READ], OWN),
            id="its own error is no finding",
        ),
        pytest.param(f"{HEAD}========= ERROR SUMMARY: 0 errors\n", (0, [], ""), id="clean"),
        pytest.param("", (None, [], ""), id="nothing"),
        pytest.param(
            f"{HEAD}========= Error: Target application ended before its first instrumented call\n",
            (None, [], ""),
            id="without a summary",
        ),
    ],
)
def test_the_report_of_the_sanitizer(text: str, report: tuple[int | None, list[str], str]) -> None:
    assert read_sanitizer(text) == report


VARIABLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(params=[None, "1"])
def before(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The GPUs that the user has chosen."""
    value: str | None = request.param
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    return value


def test_the_choice_of_the_user_is_restored(before: str | None) -> None:
    with hidden_gpus():
        assert os.environ[VARIABLE] == "-1"
    assert os.environ.get(VARIABLE) == before


@pytest.mark.usefixtures("before")
def test_what_torch_has_stored_about_gpus_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the modules of torch: triton's `has_triton` and the old `device_count` store their results."""

    @functools.cache
    def finds_gpu() -> bool:
        return os.environ.get(VARIABLE) != "-1"

    modules = {
        name: ModuleType(name) for name in ("torch.cuda", "torch.utils._triton", "torch._dynamo.device_interface")
    }
    vars(modules["torch.cuda"])["device_count"] = finds_gpu
    vars(modules["torch._dynamo.device_interface"])["_device_initialized"] = True
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert finds_gpu()
    with hidden_gpus():
        assert not finds_gpu()
        assert vars(modules["torch._dynamo.device_interface"])["_device_initialized"] is False
    assert finds_gpu()


def test_hidden_gpus_are_no_gpus(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, before or "0")  # so that monkeypatch restores it
    hide_gpus()
    assert not may_have_gpu()
