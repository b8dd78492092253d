"""The tasks of a run, the checks that are not run and why, and the order of the queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.gate.check_table import CHECKS, TASK_CHECKS
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.scheduler import TaskQueue
from builder.gate.processes.verdicts import compare_bits
from builder.gate.tasks import CaseFacts, Task, plan

SPEC = Spec("toy", ["toy"])
PLAIN = CaseFacts(0, "ns::op", "plain")


def planned(*cases: CaseFacts, no_gpu: str = "no GPU", spec: Spec = SPEC) -> tuple[set[str], dict[str, str]]:
    tasks, outcomes = plan(spec, cases, no_gpu)
    assert {one.verdict for one in outcomes} <= {NOT_RUN}
    return {task.check.name for task in tasks}, {one.check: one.reason for one in outcomes}


def test_every_check_is_a_task_except_those_of_the_scheduler() -> None:
    assert {check.name for check in TASK_CHECKS} == set(CHECKS) - {"ops", "loaded", "import-order"}


def test_without_a_gpu_its_checks_are_not_run() -> None:
    tasks, skipped = planned(PLAIN)
    assert {"values", "memory", "compile", "fake", "dispatch"} <= tasks
    assert skipped == dict.fromkeys((name for name in CHECKS if name.startswith("gpu-")), "no GPU")
    tasks, skipped = planned(PLAIN, no_gpu="")
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
    assert planned(PLAIN, spec=Spec("toy", ["toy"], checks=["values"])) == ({"values"}, {})


def task(name: str, number: int = 0) -> Task:
    [check] = [one for one in TASK_CHECKS if one.name == name]
    return Task(check, CaseFacts(number, "ns::op", str(number)), "cpu")


def test_the_quick_check_of_a_case_runs_before_the_others() -> None:
    queue = TaskQueue([task("compile"), task("values")])
    first = queue.take(heap_checks=False)
    assert first == task("values")
    assert queue.take(heap_checks=False) is None
    assert queue.done(task("values"), "") == []
    assert queue.take(heap_checks=False) == task("compile")
    assert not queue


def test_cases_of_a_tracing_check_share_a_process() -> None:
    changes_a_file = replace(task("export", 3), case=CaseFacts(3, "ns::op", "3", side_effects=True))
    on_gpu = replace(task("export", 4), device="cuda")
    queue = TaskQueue([*(task("export", one) for one in range(3)), changes_a_file, on_gpu, task("opcheck")], jobs=2)
    first = queue.take(heap_checks=False)
    assert first == task("export", 0)
    assert queue.take_others(first) == (task("export", 1), task("export", 2)), "half of five"
    queue.put_back([task("export", 1), task("export", 2)], alone=[task("export", 1)])
    for one in (task("export", 1), task("export", 2), changes_a_file, on_gpu, task("opcheck")):
        assert queue.take(heap_checks=False) == one
        assert queue.take_others(one) == ()
    assert not queue


@pytest.mark.parametrize("check", ["values", "edges", "repeat", "memory"])
def test_a_check_of_results_has_a_process_for_each_case(check: str) -> None:
    queue = TaskQueue([task(check), task(check, 1)])
    assert queue.take_others(task(check)) == ()


def test_a_case_that_hangs_is_dropped_and_others_are_not() -> None:
    queue = TaskQueue([task("values"), task("layouts"), task("memory"), task("layouts", 1)])
    assert queue.take(heap_checks=False) == task("values")
    assert {one.check for one in queue.done(task("values"), "time")} == {"layouts", "memory"}
    assert queue.take(heap_checks=False) == task("layouts", 1)


def test_a_compilation_that_hangs_drops_no_tasks() -> None:
    queue = TaskQueue([task("compile"), task("layouts")])
    assert queue.done(task("compile"), "time") == []
    assert queue


def test_each_fork_server_gets_only_its_tasks() -> None:
    queue = TaskQueue([task("memory"), task("layouts")])
    assert queue.take(heap_checks=True) == task("memory")
    assert queue.take(heap_checks=True) is None
    assert [one.check for one in queue.drop(heap_checks=False, reason="gone")] == ["layouts"]


def test_a_quick_check_that_is_retried_still_holds_back_its_case() -> None:
    queue = TaskQueue([task("values"), task("layouts")])
    first = queue.take(heap_checks=False)
    assert first
    queue.retry_exclusively(first)
    assert queue.take(heap_checks=False) is None
    assert queue.take_exclusive(heap_checks=False) == first
    queue.done(first, "")
    assert queue.take(heap_checks=False) == task("layouts")


def test_different_bits_in_a_second_process_fail_repeat() -> None:
    def outcome(check: str, bits: str) -> Outcome:
        return Outcome(check, "ns::op", "plain", PASSED, evidence={"bits": {"float32": bits}})

    assert [one.verdict for one in compare_bits([outcome("repeat", "a"), outcome("memory", "a")])] == [PASSED, PASSED]
    assert [one.verdict for one in compare_bits([outcome("repeat", "a"), outcome("memory", "b")])] == [FAILED, PASSED]
