"""Which tasks a run has, which are not run and why, and which comes next."""

from __future__ import annotations

from builder.gate.outcome import CHECKS, FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.tasks import TABLE, CaseFacts, Task, plan
from builder.gate.verdicts import joined
from builder.gate.waiting import Waiting

SPEC = Spec("toy", ["toy"])
PLAIN = CaseFacts(0, "ns::op", "plain")


def planned(*cases: CaseFacts, no_gpu: str = "no GPU", spec: Spec = SPEC) -> tuple[set[str], dict[str, str]]:
    tasks, outcomes = plan(spec, cases, no_gpu)
    assert {one.verdict for one in outcomes} <= {NOT_RUN}
    return {task.check.name for task in tasks}, {one.check: one.reason for one in outcomes}


def test_the_table_knows_every_check_but_those_of_the_conductor() -> None:
    assert {check.name for check in TABLE} == set(CHECKS) - {"ops", "import-order"}


def test_without_a_gpu_its_checks_say_so() -> None:
    tasks, skipped = planned(PLAIN)
    assert {"values", "memory", "compile", "fake", "dispatch"} <= tasks
    assert skipped == dict.fromkeys((name for name in CHECKS if name.startswith("gpu-")), "no GPU")
    tasks, skipped = planned(PLAIN, no_gpu="")
    assert "gpu-graph" in tasks
    assert not skipped


def test_what_is_not_claimed_is_not_run() -> None:
    tasks, skipped = planned(CaseFacts(0, "ns::op", "plain", not_claimed={"fake": "upstream has none"}))
    assert "fake" not in tasks
    assert skipped["fake"] == "not claimed: upstream has none"


def test_an_edge_case_is_run_as_an_edge() -> None:
    tasks, _ = planned(CaseFacts(0, "ns::op", "none", edge="empty"))
    assert {"edges", "fake", "memory"} <= tasks
    assert not {"values", "layouts", "compile"} & tasks


def test_an_op_with_edge_cases_alone_has_not_passed_what_edges_are_not_put_to() -> None:
    edge = CaseFacts(0, "ns::op", "none", edge="empty")
    _, skipped = planned(edge)
    assert {skipped[check] for check in ("values", "layouts", "repeat", "compile", "export")} == {
        "the op has edge cases alone: add a case without edge"
    }
    _, skipped = planned(edge, CaseFacts(1, "ns::op.default", "plain"), no_gpu="")
    assert not skipped


def test_an_op_without_a_cpu_kernel_runs_on_the_gpu_or_says_why_not() -> None:
    only = CaseFacts(0, "ns::op", "plain", devices=("cuda",))
    tasks, skipped = planned(only)
    assert tasks == {"dispatch", "devices"}
    assert skipped["values"] == "no GPU"
    tasks, skipped = planned(only, no_gpu="")
    assert "values" in tasks
    assert skipped["memory"] == "the case says the op has no CPU kernel"


def test_an_op_that_is_missing_is_not_run() -> None:
    tasks, skipped = planned(CaseFacts(0, "ns::gone", "plain", missing="nothing of this name"))
    assert tasks == {"dispatch"}
    assert skipped["values"] == "nothing of this name"


def test_only_what_is_asked_for() -> None:
    assert planned(PLAIN, spec=Spec("toy", ["toy"], checks=["values"])) == ({"values"}, {})


def task(name: str, number: int = 0) -> Task:
    [check] = [one for one in TABLE if one.name == name]
    return Task(check, CaseFacts(number, "ns::op", str(number)), "cpu")


def test_the_scout_of_a_case_goes_first() -> None:
    waiting = Waiting([task("compile"), task("values")])
    scout = waiting.take(guarded=False)
    assert scout == task("values")
    assert waiting.take(guarded=False) is None
    assert waiting.done(task("values"), "") == []
    assert waiting.take(guarded=False) == task("compile")
    assert not waiting


def test_a_case_that_hangs_is_given_up_and_others_are_not() -> None:
    waiting = Waiting([task("values"), task("layouts"), task("memory"), task("layouts", 1)])
    assert waiting.take(guarded=False) == task("values")
    assert {one.check for one in waiting.done(task("values"), "time")} == {"layouts", "memory"}
    assert waiting.take(guarded=False) == task("layouts", 1)


def test_a_compilation_that_hangs_says_nothing_of_the_op() -> None:
    waiting = Waiting([task("compile"), task("layouts")])
    assert waiting.done(task("compile"), "time") == []
    assert waiting


def test_guarded_tasks_are_kept_apart() -> None:
    waiting = Waiting([task("memory"), task("layouts")])
    assert waiting.take(guarded=True) == task("memory")
    assert waiting.take(guarded=True) is None
    assert [one.check for one in waiting.drop(guarded=False, reason="gone")] == ["layouts"]


def test_a_scout_tried_again_alone_still_holds_its_case_back() -> None:
    waiting = Waiting([task("values"), task("layouts")])
    scout = waiting.take(guarded=False)
    assert scout
    waiting.again_alone(scout)
    assert waiting.take(guarded=False) is None
    assert waiting.take_alone(guarded=False) == scout
    waiting.done(scout, "")
    assert waiting.take(guarded=False) == task("layouts")


def test_other_bits_in_another_process_fail_repeat() -> None:
    def outcome(check: str, bits: str) -> Outcome:
        return Outcome(check, "ns::op", "plain", PASSED, evidence={"bits": {"float32": bits}})

    assert [one.verdict for one in joined([outcome("repeat", "a"), outcome("memory", "a")])] == [PASSED, PASSED]
    assert [one.verdict for one in joined([outcome("repeat", "a"), outcome("memory", "b")])] == [FAILED, PASSED]
