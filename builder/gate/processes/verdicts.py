"""Turns the records and exits of processes into outcomes; sorts outcomes; reports checks that never started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder.gate import coverage
from builder.gate.check_table import CHECKS, TASK_CHECKS
from builder.gate.coverage import CaseFacts
from builder.gate.imports import libraries
from builder.gate.outcome import FAILED, MISTAKE_IN_CASES, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.jobs import INSIDE, SEND, Job
from builder.gate.processes.servers import HEAP_CHECKS, JUDGE, ORDERS, Server
from builder.gate.system.process_end import ProcessExit, describe_exit

#: Reason of a failure if the journal of a task has content that the task itself did not write.
FORGED = "something other than the gate writes into the results of this check: remove the code that does it"


def imports_found(
    spec: Spec, ops: Sequence[str], cases: Sequence[CaseFacts], facts: Mapping[str, Any]
) -> list[Outcome]:
    """Return the outcomes of "loaded", "ops" and "edges" for what the imports found.

    `facts` are those of the fork server. Errors of the imports are reported whatever was selected: with "not run" alone
    the gate would not fail.
    """
    problems = [Outcome("ops", "", "", FAILED, error) for error in facts["errors"]]
    if problem := facts.get("cases_problem"):
        evidence = dict(MISTAKE_IN_CASES) if facts["mistake"] else {}
        problems.append(Outcome("ops", "", "", FAILED, problem, evidence=evidence))
    found = coverage.missing_empty_cases(cases)
    if facts["imported"]:
        found += libraries.loaded_libraries(facts["libraries"], spec)
        found += [] if ops else [libraries.no_op(facts["libraries"])]
        why = "" if spec.has_cases else coverage.no_cases(spec.name)
        if spec.has_cases and problem:  # reported once, and not as a missing case of each op
            why = "cases.py cannot be used, so no op was called"
        if why:
            found += [Outcome("ops", op, "", NOT_RUN, why) for op in ops]
        else:
            found += coverage.case_coverage(ops, cases, facts.get("not_claimed", {}))
    return [*problems, *(one for one in found if not spec.checks or one.check in spec.checks)]


def not_run(spec: Spec, reason: str, *, per_extension: bool) -> list[Outcome]:
    """Return "not run" for each selected check; checks of the extension are included only if `per_extension`."""
    selected = [check for check in TASK_CHECKS if not spec.checks or check.name in spec.checks]
    return [
        Outcome(check.name, "", "", NOT_RUN, reason) for check in selected if per_extension or not check.per_extension
    ]


def other_cases(judge: Mapping[str, Any], cases: Sequence[CaseFacts]) -> str:
    """Return a sentence if the process of the extension names other cases than the judge has read, or ""."""
    have = [[case.op, case.name, case.edge, list(case.devices), dict(case.not_claimed)] for case in cases]
    if not judge or judge.get("problem") or have == judge["cases"]:
        return ""
    return (
        "cases.py has other cases when the extension is imported than without it: "
        "define the cases independently of the extension"
    )


def no_gpu(where: dict[str, Any], job: Job) -> str:
    """Return why the GPU checks cannot run, or ""; `job` has looked for GPUs."""
    if where.get("gpus"):
        return ""
    if failed := [outcome.reason for outcome in job.record.outcomes if outcome.verdict == FAILED]:
        return f"looking for a GPU failed: {failed[0]}"
    if job.limit == "time":
        return f"looking for a GPU took longer than {job.seconds:g} s: look whether `nvidia-smi` answers"
    if not job.record.ended:
        return f"looking for a GPU failed: the process {job.process_exit().sentence()}"
    return str(where.get("no_gpu") or "no GPU on this machine")


def next_phase(job: Job) -> str:
    """Return the phase that follows a process that has done its part, or "": it has decided, or has failed."""
    record = job.record
    if not record.ended or record.foreign or record.forked or record.outcomes or job.status:
        return ""
    if job.limit or job.prints_too_much():
        return ""
    if job.phase == JUDGE:
        return INSIDE if record.facts.get(INSIDE) is True else ""
    return JUDGE if job.phase == SEND else ""


def job_outcomes(job: Job) -> list[Outcome]:
    """Return the outcomes of a job that ended: those in its journal, and a failure if it crashed or hit a limit."""
    record = job.record
    seconds = round(time.monotonic() - job.began, 3)
    # In the phase SEND, whether the result is right is the judge's part.
    theirs = [one for one in record.outcomes if _is_of(one, job) and (job.phase != SEND or one.verdict == FAILED)]
    if record.foreign or theirs != record.outcomes:
        return [job.outcome(FAILED, FORGED, seconds)]
    # A process that an op duplicated has passed nothing.
    outcomes = [one for one in record.outcomes if one.verdict != PASSED or not record.forked]
    if record.ended and job.prints_too_much():  # it ended before the scheduler could kill it
        job.limit = "output"
    no_verdict = job.check.judged and not outcomes and not record.forked
    whole = record.ended and not no_verdict and not (job.status and not job.limit)
    if whole and record.forked:
        reason = "forks, and the child returns from the op as a second process: the child must call _exit()"
        return [*outcomes, job.outcome(FAILED, reason, seconds)]
    if not whole or job.limit == "output":
        end = job.process_exit()
        who = "the judge, which runs the reference or the invariant of the case, " if job.phase == JUDGE else ""
        outcomes.append(job.outcome(FAILED, who + end.sentence(), seconds, **end.evidence()))
    return outcomes


def of_several(ended: Job) -> tuple[list[Outcome], list[Job], list[Job]]:
    """Return what a process with several cases has passed, the jobs of these cases, and those to run again.

    Alone run the cases that did not pass, the one that did not end, and all if it is not clear which one is at fault.
    """
    everyone, record = ended.each(), ended.record
    outcomes = {job: [one for one in record.outcomes if _is_of(one, job)] for job in everyone}
    done, stopped = everyone[: len(record.done)], everyone[len(record.done) :]
    whole = record.ended and not (ended.status or ended.limit or ended.prints_too_much())
    strange = record.foreign or record.forked or sum(map(len, outcomes.values())) != len(record.outcomes)
    if strange or (not whole and (record.ended or not stopped)):
        doubtful, stopped, alone = everyone, [], everyone
    else:
        doubtful = [
            job
            for job in done
            if any(one.verdict != PASSED for one in outcomes[job]) or (job.phase == JUDGE and not outcomes[job])
        ]
        alone = [*doubtful, *(() if whole else stopped[:1])]
    for job in alone:
        job.alone = True
    passed = [job for job in done if job not in doubtful]
    return [one for job in passed for one in outcomes[job]], passed, [*doubtful, *stopped]


def _is_of(outcome: Outcome, job: Job) -> bool:
    """Whether an outcome is about the check, the op and the case of a job."""
    about = job.case is None or (outcome.op, outcome.case) == (job.op, job.case.name)
    return outcome.check == job.check.name and about


def import_failure(server: Server, status: int) -> tuple[str, list[Outcome]]:
    """Return why a fork server ended during its imports, as a sentence, and the failure.

    There is no failure if torch itself cannot be imported under the heap checks.
    """
    log = server.log()
    reason = f"importing {server.importing} {describe_exit(status, log)}"
    evidence = ProcessExit(status, log=log, stack=log).evidence()
    if server.role != HEAP_CHECKS:
        check = "import-order" if server.role == ORDERS else "ops"
        return reason, [Outcome(check, "", "", FAILED, reason, evidence=evidence)]
    reason += " under glibc's heap checks"
    failure = Outcome("memory", "", "", FAILED, reason, evidence=evidence)
    return reason, [failure] if server.importing != "torch" else []


def compare_bits(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Fail "repeat" where "memory", which runs in a different process, found different bits for the same case."""
    in_memory = {(one.op, one.case): one.evidence.get("bits") for one in outcomes if one.check == "memory"}
    reason = (
        "a second process gives different bits for the same input: "
        "the op reads uninitialised memory, or the result depends on the time"
    )

    def differs(one: Outcome) -> bool:
        bits, others = one.evidence.get("bits"), in_memory.get((one.op, one.case))
        return one.check == "repeat" and one.verdict != NOT_RUN and bool(bits and others) and bits != others

    return [replace(one, verdict=FAILED, reason=reason) if differs(one) else one for one in outcomes]


def in_report_order(outcomes: Sequence[Outcome], ops: Sequence[str]) -> list[Outcome]:
    """Sort by the order of CHECKS, then by the order of the ops, then by the name of the case."""
    checks, positions = list(CHECKS), {"": -1, **{op: index for index, op in enumerate(ops)}}
    return sorted(
        outcomes,
        key=lambda one: (checks.index(one.check), positions.get(one.op, len(positions)), one.op, one.case),
    )
