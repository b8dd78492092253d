"""The static checks of a wheel with compiled libraries."""

from __future__ import annotations

from pathlib import Path

from builder.proof import Check, Verdict
from builder.proofs.static.file_checks import static_proofs
from builder.wheelfile.facts import read_facts
from tests.fixtures.compiled import compiled, with_gpu_code
from tests.unit.proofs.make import CELL, PROVIDED, claim, fat_binary, make_wheel, table


def test_real_wheel_from_file_to_proofs(tmp_path: Path) -> None:
    """For a different GPU, not repaired, no local version: three checks fail, the others pass."""
    extension = with_gpu_code(tmp_path, fat_binary((2, 80, 0x11)))
    helper = compiled(
        tmp_path, '#include <stdlib.h>\nextern "C" char* PyInit__C() { return getenv("X"); }', name="_C.so"
    )
    wheel = make_wheel(
        tmp_path, {"ops/gpu.so": extension, "ops/_C.so": helper}, metadata="Requires-Dist: torch>=2.11,<2.12"
    )
    proofs = static_proofs(read_facts(wheel), claim(), PROVIDED, {CELL: table()})
    failed = {proof.check for proof in proofs if proof.verdict is Verdict.FAILED}
    assert failed == {Check.TAGS, Check.METADATA, Check.DEVICE_CODE}
