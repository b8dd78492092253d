"""One attack for each op."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cheats.ops import register
from torch import Tensor

_PASSED = {"check": "values", "op": "", "case": "plain", "verdict": "passed", "reason": "", "seconds": 0.1}


def _journals() -> Iterator[Path]:
    yield from Path(os.environ["TMPDIR"]).parent.glob("*/journal")


def _passed_line(op: str) -> str:
    line = json.dumps({"outcome": {**_PASSED, "op": f"cheats::{op}", "evidence": {}}})
    return f"{line}\n" + json.dumps({"end": True}) + "\n"


def _parents() -> tuple[int, int]:
    """The fork server and the scheduler."""
    server = os.getppid()
    stat = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return server, int(stat[1])


def append_passed_lines(_: Tensor) -> None:
    for path in _journals():
        with path.open("a", encoding="utf-8") as file:
            file.write(_passed_line("append_passed_lines"))
    os._exit(0)


def use_the_own_journal(_: Tensor) -> None:
    from builder.gate.outcome import Outcome
    from builder.gate.processes.journal import Journal

    journal = next(one for one in gc.get_objects() if isinstance(one, Journal))
    journal.outcome(Outcome("values", "cheats::use_the_own_journal", "plain", "passed"))
    journal.end()
    os._exit(0)


def exit_at_once(_: Tensor) -> None:
    os._exit(0)


def exit_with_an_exit_handler(_: Tensor) -> None:
    atexit.register(os._exit, 0)
    sys.exit(0)


def raise_system_exit(_: Tensor) -> None:
    raise SystemExit(0)


def write_garbage_into_journals(_: Tensor) -> None:
    own = next(path for path in _journals() if path.parent.name == max(p.parent.name for p in _journals()))
    own.write_bytes(b'[]\n{"outcome": 3}\n\xff\n')


class _Liar(Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.equal, torch.allclose, Tensor.__eq__):
            return True
        return super().__torch_function__(function, types, args, kwargs or {})


def answer_as_a_lying_subclass(x: Tensor) -> Tensor:
    return (x + 1).as_subclass(_Liar)


def replace_comparisons(_: Tensor) -> None:
    for owner in (torch, torch.Tensor):
        for name in ("equal", "allclose", "eq", "__eq__"):
            if hasattr(owner, name):
                setattr(owner, name, lambda *_, **__: True)
    torch.isclose = lambda one, *_, **__: torch.ones(one.shape, dtype=torch.bool)
    torch.testing.assert_close = lambda *_, **__: None


def replace_functions_of_the_gate(_: Tensor) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("builder.gate"):
            for function in ("compare", "judge_result", "largest_error", "call_op"):
                if hasattr(module, function):
                    setattr(module, function, lambda *_, **__: None)


def replace_output(_: Tensor) -> None:
    dumps = json.dumps
    json.dumps = lambda data, **more: dumps(data, **more).replace("failed", "passed")
    builtins.open = lambda *_, **__: os.fdopen(os.open(os.devnull, os.O_RDWR), "w")


def replace_the_clock(_: Tensor) -> None:
    time.monotonic = time.perf_counter = time.time = lambda: 0.0


def print_passed(_: Tensor) -> None:
    print(_passed_line("print_passed"))
    sys.stderr.write(_passed_line("print_passed"))


def leave_a_process_that_writes_later(_: Tensor) -> None:
    if os.fork():
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    ctypes.CDLL(None).prctl(15, b"innocent", 0, 0, 0)
    for _round in range(20):
        time.sleep(0.02)
        for path in Path(os.environ["TMPDIR"]).parent.glob("*/journal"):
            if "leave_a_process" in path.read_text(errors="replace"):
                path.write_text(_passed_line("leave_a_process_that_writes_later"))
    os._exit(0)


def change_the_input(x: Tensor) -> Tensor:
    x.zero_()
    return torch.zeros_like(x)


def rewrite_files_of_the_gate(_: Tensor) -> None:
    root = Path(sys.modules["builder.gate"].__path__[0]).parents[1]
    cases = (root / "cases.py").read_text(encoding="utf-8")
    (root / "cases.py").write_text(cases.replace("x * 2", "x + 1"), encoding="utf-8")
    file = root / "builder" / "gate" / "checks" / "values.py"
    file.write_text(file.read_text(encoding="utf-8").replace("return compare(", "return None and compare("))
    (root / "spec.json").write_text("{}", encoding="utf-8")


def write_to_descriptors(_: Tensor) -> None:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, _passed_line("write_to_descriptors").encode())
        except OSError:
            continue


def link_the_results_to_a_device(_: Tensor) -> None:
    for path in _journals():
        try:
            (path.parent / "results").symlink_to("/dev/zero")
        except OSError:
            continue
    os._exit(0)


def return_from_a_copy(x: Tensor) -> Tensor:
    os.fork()
    return x + 1


def kill_the_scheduler(_: Tensor) -> None:
    os.kill(_parents()[1], signal.SIGKILL)


def _judges() -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"judge.start" in path.read_bytes():
                yield int(path.parent.name)
        except OSError:
            continue


def kill_the_judge(_: Tensor) -> None:
    for pid in _judges():
        os.kill(pid, signal.SIGKILL)


def stop_the_fork_server(_: Tensor) -> None:
    os.kill(_parents()[0], signal.SIGSTOP)
    time.sleep(3600)


def inject_events(_: Tensor) -> None:
    server = _parents()[0]
    for descriptor in Path(f"/proc/{server}/fd").iterdir():
        try:
            target = os.open(descriptor, os.O_WRONLY | os.O_NONBLOCK)
            for number in range(20):
                os.write(target, json.dumps({"event": "ended", "id": number, "status": 0}).encode() + b"\n")
        except OSError:
            continue


def forge_the_answer(_: Tensor) -> None:
    root = Path(sys.modules["builder.gate"].__path__[0]).parents[1]
    outcome = {**_PASSED, "op": "cheats::wrong", "evidence": {}}
    answer = {"where": {"torch": "2.11.0"}, "ops": ["cheats::wrong"], "outcomes": [outcome], "signature": "0" * 64}
    os.kill(_parents()[1], signal.SIGKILL)
    (root / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def honest(x: Tensor) -> Tensor:
    return x * 2


def wrong(_: Tensor) -> None:
    pass


for attack in (
    append_passed_lines,
    use_the_own_journal,
    exit_at_once,
    exit_with_an_exit_handler,
    raise_system_exit,
    write_garbage_into_journals,
    answer_as_a_lying_subclass,
    replace_comparisons,
    replace_functions_of_the_gate,
    replace_output,
    replace_the_clock,
    print_passed,
    leave_a_process_that_writes_later,
    change_the_input,
    rewrite_files_of_the_gate,
    write_to_descriptors,
    link_the_results_to_a_device,
    return_from_a_copy,
    kill_the_scheduler,
    kill_the_judge,
    stop_the_fork_server,
    inject_events,
    forge_the_answer,
    honest,
    wrong,
):
    register(attack.__name__, attack)
