"""The table of an answer: nothing lost, nothing called green that was not run."""

from dataclasses import replace
from typing import Any

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.imports.registration import no_autograd
from builder.gate.outcome import ACCEPTED, FAILED, NOT_RUN, PASSED, Answer, Outcome
from builder.gate.report import PlacedOutcome, causes_of, count_checks, table
from builder.proofs.cells.op_gate import CellProofs
from builder.publish.proof_lines import counts

WHERE = {"torch": "2.11.0+cu130", "cuda": "13.0", "python": "3.12.1", "glibc": "2.39", "machine": "x86_64", "gpus": []}
H100 = {"name": "NVIDIA H100 80GB HBM3", "sm": "sm_90", "driver": "580.65.06"}
OP = "ms_deform_attn::forward"


def answer(*outcomes: Outcome, ops: tuple[str, ...] = (OP,), **where: Any) -> Answer:
    return Answer({**WHERE, **where}, list(ops), list(outcomes))


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_table_says_where_it_was_made() -> None:
    text = table("ms_deform_attn: 1 passed", answer(Outcome("values", OP, "plain", PASSED)))
    assert text.splitlines()[:2] == [
        "ms_deform_attn: 1 passed",
        "torch 2.11.0+cu130, CUDA 13.0, Python 3.12.1, glibc 2.39, x86_64, no GPU",
    ]
    with_gpus = table("x", answer(gpus=[H100, {"name": "NVIDIA L4"}])).splitlines()
    assert with_gpus[1].endswith("x86_64")
    assert with_gpus[2:4] == ["GPU 0: NVIDIA H100 80GB HBM3, sm_90, driver 580.65.06", "GPU 1: NVIDIA L4"]


def test_each_op_has_a_line_with_the_counts_of_its_checks() -> None:
    found = [Outcome("values", OP, str(case), verdict) for case, verdict in enumerate([PASSED, NOT_RUN])]
    found += [Outcome("fake", OP, "", FAILED), Outcome("ops", OP, "", PASSED), Outcome("import-order", "", "", PASSED)]
    text = table("x", answer(*found, ops=("a::forgotten", OP)))
    assert line_of(text, OP) == f"{OP}  1 passed, 1 failed, 1 not run"
    assert line_of(text, "(whole extension)").split("  ")[-1] == "1 passed, 0 failed, 0 not run"
    assert line_of(text, "a::forgotten").split("  ")[-1].strip() == "0 passed, 0 failed, 0 not run"


def test_a_case_that_omits_the_overload_is_in_the_line_of_the_op() -> None:
    text = table("x", answer(Outcome("values", OP, "", PASSED), ops=(f"{OP}.default",)))
    assert f"{OP}.default" not in text


EITHER_SIDE = "; if the reference in cases.py is the wrong side, correct it and test again"
STRIDES = "the fake kernel returns strides (8, 1), the real kernel (1, 4)"
SEGV = "dies with SIGSEGV (a segmentation fault) in f of _C.so"


@pytest.mark.parametrize(
    ("found", "entry"),
    [
        pytest.param(
            [Outcome("fake", OP, case, FAILED, f"{OP} ({case}): {STRIDES}") for case in ("plain", "two levels")],
            f"fake          {OP} (plain, two levels): {STRIDES}",
            id="the same reason in several cases",
        ),
        pytest.param(
            [
                Outcome(check, OP, case, FAILED, f"{SEGV} (step: {check} of {case})")
                for check in ("values", "gradients", "layouts", "memory")
                for case in ("plain", "empty")
            ],
            f"values, gradients, layouts, memory  {OP} (plain, empty): {SEGV}",
            id="one crash in many checks",
        ),
        pytest.param(
            [Outcome("ops", "", "", FAILED, "a::b has no case in cases.py: write one")],
            "ops           a::b has no case in cases.py: write one",
            id="a failure of the extension",
        ),
        pytest.param([Outcome("values", OP, "", FAILED)], f"values        {OP}: no reason given", id="no reason"),
        pytest.param(
            [Outcome("values", OP, "", FAILED, "killed\x1b[2J\nby\x07 SIGSEGV")],
            f"values        {OP}: killed [2J by SIGSEGV",
            id="control characters",
        ),
    ],
)
def test_a_failure_is_one_entry_that_names_its_checks_and_cases(found: list[Outcome], entry: str) -> None:
    text = table("x", answer(*found))
    assert f"  FAILED    {entry}" in " ".join(text.split("\n            "))
    assert text.count("FAILED") == 1


def test_what_was_not_run_is_one_line_for_each_cause() -> None:
    ops = ("a::b", "a::c", "a::d")
    no_gpu = [Outcome(check, op, "", NOT_RUN, "no GPU on this machine") for check in list(CHECKS)[-2:] for op in ops]
    no_fake = [Outcome("fake", op, case, NOT_RUN, "no fake kernel") for op in ops[:2] for case in ("plain", "edge")]
    lines = table("x", answer(*no_gpu, *no_fake, ops=ops)).splitlines()
    assert lines[-2:] == [
        "  not run   GPU           no GPU on this machine",
        "  not run   fake          a::b, a::c: no fake kernel",
    ]


def test_what_failed_stands_last_and_names_all_checks() -> None:
    found = [
        Outcome("values", "a::b", "", FAILED, "1 is not 2"),
        Outcome("fake", "a::b", "", NOT_RUN, "no fake kernel"),
        Outcome("export", "a::b", "", ACCEPTED, "fails", accepted="known"),
        Outcome("edges", "a::b", "", NOT_RUN, "no case is empty", remark=True),
    ]
    lines = table("x", answer(*found)).splitlines()[-4:]
    assert [each.split()[0] for each in lines] == ["not", "accepted", "remark", "FAILED"]


def test_without_every_a_cause_has_one_line_and_the_others_are_counted() -> None:
    ops = [f"a::op{i}" for i in range(9)]
    found = [Outcome("fake", op, "", NOT_RUN, "why " * 50) for op in ops[:8]] + [Outcome("fake", ops[8], "", PASSED)]
    found += [Outcome("values", "", "", NOT_RUN, f"reason {number}") for number in range(7)]
    causes = causes_of(map(PlacedOutcome, found))
    lines = list(causes.lines(100))
    assert lines[0].startswith("  not run   fake          8 of 9 ops: why")
    assert lines[0].endswith(" …")
    assert lines[-1] == "  not run   4 more        values: `--verbose` shows them"
    assert len(lines) == 5
    assert len(list(causes.lines(100, every=True))) > 8


def test_a_cell_is_named_only_if_there_are_others() -> None:
    one = Outcome("linkage", "", "", FAILED, "undefined symbol")
    assert causes_of([PlacedOutcome(one, "cp312")]).sentences(FAILED) == ["linkage: undefined symbol"]
    others = [PlacedOutcome(replace(one, verdict=PASSED), cell) for cell in ("cp313", "cp314")]
    assert causes_of([PlacedOutcome(one, "cp312"), *others]).sentences(FAILED) == ["linkage in cp312: undefined symbol"]
    two = [PlacedOutcome(one, "cp312"), PlacedOutcome(one, "cp313"), *others]
    assert causes_of(two).sentences(FAILED) == ["linkage in 2 of 3 cells: undefined symbol"]
    wheels = [PlacedOutcome(one, "cp312", "a"), PlacedOutcome(replace(one, verdict=PASSED), "cp313", "b")]
    assert causes_of(wheels).sentences(FAILED) == ["linkage in a: undefined symbol"]


def test_the_gate_and_build_count_each_check_once() -> None:
    found = answer(
        *(Outcome("values", OP, case, PASSED) for case in ("plain", "two levels")),
        Outcome("gradients", OP, "plain", PASSED),
        Outcome("gradients", OP, "two levels", NOT_RUN, "no reference"),
        *(Outcome("layouts", OP, case, FAILED, "differs") for case in ("plain", "two levels")),
        Outcome("fake", OP, "", NOT_RUN, "a gap", remark=True),
        Outcome("export", OP, "", ACCEPTED, "fails", accepted="known"),
    )
    others = len(CHECKS) - 5
    counted = count_checks(found.outcomes, CHECKS)
    assert counted == f"1 passed, 1 failed, {1 + others} not run, 1 accepted, 1 remark"
    assert counted == counts(CellProofs("", None).of_gate(found))
    assert count_checks(found.outcomes, ["values"]) == "1 passed, 1 failed, 1 not run, 1 accepted, 1 remark"


def test_the_lines_of_one_wheel_fit_a_screen() -> None:
    kinds = [(FAILED, False, ""), (NOT_RUN, False, ""), (NOT_RUN, True, ""), (ACCEPTED, False, "known")]
    found = [
        PlacedOutcome(
            Outcome("values", f"a::op{number}", "", verdict, f"why {number} " * 40, remark=remark, accepted=known)
        )
        for verdict, remark, known in kinds
        for number in range(20)
    ]
    assert len(list(causes_of(found).lines(100))) <= 24


def test_what_is_about_the_file_names_no_ops() -> None:
    found = [Outcome("values", f"a::op{number}", "", PASSED) for number in range(52)]
    found += [Outcome("grafted", "", "", NOT_RUN, "the wheel contains libx.so", remark=True)]
    found += [Outcome("import-order", "", "", NOT_RUN, "no case could be called")]
    assert [*causes_of(map(PlacedOutcome, found)).lines(100)] == [
        "  not run   import-order  no case could be called",
        "  remark    grafted       the wheel contains libx.so",
    ]


@pytest.mark.parametrize("number", [1, 5])
def test_what_to_do_is_never_cut(number: int) -> None:
    """It is the end of a sentence; what is left out stands before it."""
    wrong = "float32: the result is 0.25 at [0], the reference has 0.5; 9 of 15 elements differ (allowed: 0.1 + 0.1)"
    double = "make it a `double`, or round it in the reference (`float(torch.tensor(x, dtype=torch.float32))`)"
    autograd = f"it has no gradient: the gradients of its inputs are lost; {no_autograd('a.f')}, or write `x={{}}`"
    for verdict, text, end in (
        (FAILED, f"{'a long explanation, ' * 20}{wrong}{EITHER_SIDE}", EITHER_SIDE),
        (FAILED, f"{wrong}; so small a difference is a rounding to float32: a step is a float: {double}", double),
        (NOT_RUN, autograd, no_autograd("a.f") + ", or write `x={}`"),
    ):
        found = [Outcome("values", f"a::f{i}", "", verdict, f"{i}{text}", remark=True) for i in range(number)]
        lines = " ".join(" ".join(causes_of(map(PlacedOutcome, found)).lines(100)).split())
        assert lines.count(end.removeprefix("; ")) == (1 if number == 1 else 3 if verdict == FAILED else 2), lines
