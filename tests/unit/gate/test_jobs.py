"""The jobs of a run, the checks that are not run and why, and the order of the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.coverage import CaseFacts
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.jobs import INSIDE, OUTPUT_BYTES, SEND, Job, Queue, plan
from builder.gate.processes.journal import LOG, TaskRecord
from builder.gate.processes.servers import JUDGE, PLAIN
from builder.gate.processes.verdicts import compare_bits, job_outcomes

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


def test_only_selected_checks_have_tasks() -> None:
    assert planned(CASE, spec=Spec("toy", ["toy"], checks=["values"])) == ({"values"}, {})


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
