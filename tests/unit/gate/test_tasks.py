"""The tasks of a run, the checks that are not run and why, and the order of the queue."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.journal import LOG, TaskRecord
from builder.gate.processes.spawn import ForkServerProcess
from builder.gate.processes.task_process import OUTPUT_BYTES, TaskProcess
from builder.gate.processes.verdicts import compare_bits, task_outcomes
from builder.gate.tasks import INSIDE, JUDGE, PLAIN, SEND, CaseFacts, Task, TaskQueue, plan

SPEC = Spec("toy", ["toy"])
CASE = CaseFacts(0, "ns::op", "plain")


def planned(*cases: CaseFacts, no_gpu: str = "no GPU", spec: Spec = SPEC) -> tuple[set[str], dict[str, str]]:
    tasks, outcomes = plan(spec, cases, no_gpu)
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
    stale = CaseFacts(0, "ns::op", "plain", devices=("cuda",), line=7, cpu_kernel=True)
    _, skipped = planned(stale)
    cure = "but the op has a CPU kernel: remove `devices` from its cases in cases.py, line 7"
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


def test_only_selected_checks_have_tasks() -> None:
    assert planned(CASE, spec=Spec("toy", ["toy"], checks=["values"])) == ({"values"}, {})


def task(name: str, number: int = 0, *, side_effects: bool = False, device: str = "cpu") -> Task:
    return Task(CHECKS[name], CaseFacts(number, "ns::op", str(number), side_effects=side_effects), device)


def test_the_quick_check_of_a_case_runs_before_the_others() -> None:
    slow, quick = task("compile"), task("values")
    queue = TaskQueue([slow, quick])
    assert queue.take(PLAIN) == [quick]
    assert queue.take(PLAIN) == []
    quick.exclusive = True  # its fork server has ended while several tasks were running
    queue.put_back([quick])
    assert queue.take(PLAIN) == []
    assert queue.take(PLAIN, idle=True) == [quick]
    assert queue.done(quick) == []
    assert queue.take(PLAIN) == [slow]
    assert not queue


def test_cases_of_a_tracing_check_share_a_process() -> None:
    tasks = [task("export", one) for one in range(3)]
    others = [task("export", 3, side_effects=True), task("export", 4, device="cuda"), task("opcheck")]
    queue = TaskQueue([*tasks, *others], jobs=2)
    assert queue.take(PLAIN) == tasks, "half of five"
    tasks[1].alone = True
    queue.put_back(tasks[1:])
    assert [queue.take(PLAIN) for _ in range(5)] == [[one] for one in [*tasks[1:], *others]]
    assert not queue


@pytest.mark.parametrize("check", ["values", "edges", "repeat", "memory"])
def test_a_check_of_results_has_a_process_for_each_case(check: str) -> None:
    tasks = [task(check), task(check, 1)]
    assert TaskQueue(tasks).take(tasks[0].role) == tasks[:1]


def test_the_judge_waits_for_all_results_and_compares_those_of_a_check_in_one_process() -> None:
    tasks = [task("values", one) for one in range(3)]
    for one in tasks:
        one.phase = SEND
    queue = TaskQueue(tasks)
    assert queue.take(PLAIN) == tasks[:1]
    tasks[0].phase = tasks[1].phase = JUDGE
    queue.put_back(tasks[:1])
    assert queue.take(JUDGE) == []
    assert queue.take(PLAIN) == tasks[2:]
    assert queue.take(JUDGE) == tasks[:2]


def test_a_compilation_that_hangs_drops_no_tasks() -> None:
    queue = TaskQueue([task("compile"), task("layouts")])
    assert queue.done(task("compile"), "time") == []
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
    ended = TaskProcess(SPEC, 1, [task("values")], cast("ForkServerProcess", None), tmp_path)
    ended.task.phase, ended.record = phase, TaskRecord(ended=True, outcomes=reported)
    *_, last = task_outcomes(ended)
    assert last.verdict == FAILED
    assert "prints more than 64.0 MiB" in last.reason
