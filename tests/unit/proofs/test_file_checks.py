from __future__ import annotations

from builder.gate.check_table import CHECKS, MEANINGS
from builder.matrix.axes import AbiClass, Cell, Torch
from builder.proof import Check, Verdict
from builder.proofs.file_checks import static_proofs
from tests.unit.proofs.make import CELL, PROVIDED, claim, gpu_library, table, wheel_facts

OTHER = Cell.parse("torch2.12.0-cu130-cp312")


def test_good_wheel_passes_every_check() -> None:
    proofs = static_proofs(wheel_facts(gpu_library("sm_90")), claim(), PROVIDED, {CELL: table()})
    assert [proof.check for proof in proofs] == [
        Check.PAYLOAD, Check.TAGS, Check.MODULES, Check.METADATA, Check.GRAFTED, Check.CONTENTS, Check.LINKAGE,
        Check.DEVICE_CODE,
    ]  # fmt: skip
    assert {proof.verdict for proof in proofs} == {Verdict.PASSED}
    assert all(proof.wheel == "ab" * 32 and proof.when for proof in proofs)


def test_linkage_is_proven_in_each_cell() -> None:
    claimed = claim(cells=(CELL, OTHER), requires=("torch>=2.11,<2.13",))
    proofs = static_proofs(wheel_facts(gpu_library("sm_90")), claimed, PROVIDED, {CELL: table()})
    linkage = {proof.cell: proof.verdict for proof in proofs if proof.check is Check.LINKAGE}
    assert linkage == {CELL: Verdict.PASSED, OTHER: Verdict.NOT_RUN}


def test_stable_wheel_has_two_further_checks() -> None:
    tag = "cp310-abi3-manylinux_2_28_x86_64"
    wheel = wheel_facts(gpu_library("sm_90", undefined=("torch_call_dispatcher",)), tag=tag, version="1.0+cu13")
    claimed = claim(abi=AbiClass.STABLE, torch=Torch(2, 10, 0), local="cu13")
    proofs = {proof.check: proof for proof in static_proofs(wheel, claimed, PROVIDED, {CELL: table()})}
    assert proofs[Check.ABI3].verdict is Verdict.PASSED
    assert proofs[Check.STABLE].verdict is Verdict.PASSED


def test_libraries_of_a_cell_count_as_provided() -> None:
    wheel = wheel_facts(gpu_library("sm_90", needed=("libcudart.so.13",)))
    proofs = {proof.check: proof for proof in static_proofs(wheel, claim(), frozenset(), {CELL: table()})}
    assert proofs[Check.TAGS].verdict is Verdict.PASSED


def test_every_check_of_the_gate_is_a_check_of_proofs_in_the_same_order() -> None:
    assert [str(check) for check in Check if check in CHECKS] == list(CHECKS)


def test_every_check_has_a_meaning_in_one_sentence() -> None:
    assert all(check.meaning.endswith(".") and "\n" not in check.meaning for check in Check)
    assert Check.VALUES.meaning == MEANINGS["values"]
    assert Check("tags") is Check.TAGS
