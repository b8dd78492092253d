"""Turns the records and exits of processes into outcomes; sorts outcomes; reports checks that never started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder.gate import coverage, tasks
from builder.gate.check_table import CHECKS, TASK_CHECKS
from builder.gate.imports import libraries
from builder.gate.outcome import FAILED, MISTAKE_IN_CASES, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes import journal
from builder.gate.processes.running_task import RunningTask
from builder.gate.processes.spawn import ForkServerProcess, Process
from builder.gate.system import crash
from builder.gate.system.exit_status import ProcessExit, exception_line


def imports_found(
    spec: Spec, ops: Sequence[str], cases: Sequence[tasks.CaseFacts], facts: Mapping[str, Any]
) -> list[Outcome]:
    """Return the outcomes of "loaded" and "ops" for what the imports found; `facts` are those of the fork server."""
    outcomes = libraries.loaded_libraries(facts["libraries"], spec)
    if not ops:
        outcomes.append(libraries.no_op(facts["libraries"]))
    if not spec.has_cases:
        return outcomes + coverage.not_covered(ops)
    if facts.get("cases_problem"):  # reported once, and not as a missing case of each op
        return outcomes + coverage.not_covered(ops, "cases.py cannot be used, so no op was called")
    return outcomes + coverage.case_coverage(ops, cases, facts.get("not_claimed", {}))


def import_problems(facts: Mapping[str, Any]) -> list[Outcome]:
    """Return a failure for each import that raised, and for a cases.py that cannot be used."""
    outcomes = [Outcome("ops", "", "", FAILED, error) for error in facts["errors"]]
    if problem := facts.get("cases_problem"):
        evidence = MISTAKE_IN_CASES if facts["mistake"] else {}
        outcomes.append(Outcome("ops", "", "", FAILED, problem, evidence=dict(evidence)))
    return outcomes


def not_run(spec: Spec, reason: str, *, per_extension: bool) -> list[Outcome]:
    """Return "not run" for each selected check; checks of the extension are included only if `per_extension`."""
    selected = [check for check in TASK_CHECKS if not spec.checks or check.name in spec.checks]
    return [
        Outcome(check.name, "", "", NOT_RUN, reason) for check in selected if per_extension or not check.per_extension
    ]


def no_gpu(where: dict[str, Any], record: journal.Record) -> str:
    """Return why the GPU checks cannot run, or ""; `record` is what the task that looked for GPUs wrote."""
    if where.get("gpus"):
        return ""
    failed = [outcome.reason for outcome in record.outcomes if outcome.verdict == FAILED]
    if failed:
        return f"looking for a GPU failed: {failed[0]}"
    if where.get("cuda") is None:
        return "this torch is a CPU build, which cannot use a GPU"
    return str(where.get("no_gpu") or "no GPU on this machine")


def task_outcomes(
    running: RunningTask, status: int, record: journal.Record, seconds: float, spec: Spec
) -> list[Outcome]:
    """Return the outcomes of a task that ended: those in its journal, and a failure if it crashed or hit a limit."""
    outcomes = _reported(record)
    task = running.task
    if record.ended and record.forked:
        reason = "forks, and the child returns from the op as a second process: the child must call _exit()"
        return [*outcomes, task.outcome(FAILED, reason, seconds)]
    if record.ended and running.prints_too_much():  # it ended before the scheduler could kill it
        running.limit = "output"
    if not record.ended or running.limit == "output":
        end = running.process_exit(spec, status, record)
        outcomes.append(task.outcome(FAILED, end.sentence(), seconds, **end.evidence()))
    return outcomes


def import_order_outcomes(process: Process) -> list[Outcome]:
    """Return the outcomes of the isolated process that tries import orders."""
    record = journal.read(process.task_dir / journal.JOURNAL)
    outcomes = _reported(record)
    if not record.ended:
        end = ProcessExit(process.ended() or 0, log=process.log())
        reason = f"the process that tests the import orders {end.sentence()}"
        outcomes.append(Outcome("import-order", "", "", FAILED, reason, evidence=end.evidence()))
    return outcomes


def _reported(record: journal.Record) -> list[Outcome]:
    """Return the outcomes in a journal; a process that an op duplicated has passed nothing."""
    return [one for one in record.outcomes if one.verdict != PASSED or not record.forked]


def import_failure(server: ForkServerProcess, status: int) -> tuple[str, ProcessExit]:
    """Return why a fork server ended during its imports, as a sentence, and how it ended."""
    log = server.log()
    lines = log.strip().splitlines()
    raised = "Traceback" in log and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1
    reason = f"importing {server.importing} " + (
        f"raises {exception_line(lines)}" if raised else crash.describe_exit(status, log)
    )
    return reason, ProcessExit(status, log=log, stack=log)


def compare_bits(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Fail "repeat" where "memory", which runs in a different process, found different bits for the same case."""
    in_memory = {(one.op, one.case): one.evidence.get("bits") for one in outcomes if one.check == "memory"}
    compared = []
    for one in outcomes:
        bits, others = one.evidence.get("bits"), in_memory.get((one.op, one.case))
        if one.check == "repeat" and one.verdict != NOT_RUN and bits and others and bits != others:
            reason = (
                "a second process gives different bits for the same input: "
                "the op reads uninitialised memory, or the result depends on the time"
            )
            one = replace(one, verdict=FAILED, reason=reason)  # noqa: PLW2901
        compared.append(one)
    return compared


def in_report_order(outcomes: Sequence[Outcome], ops: Sequence[str]) -> list[Outcome]:
    """Sort by the order of CHECKS, then by the order of the ops, then by the name of the case."""
    checks, positions = list(CHECKS), {"": -1, **{op: index for index, op in enumerate(ops)}}
    return sorted(
        outcomes,
        key=lambda one: (checks.index(one.check), positions.get(one.op, len(positions)), one.op, one.case),
    )
