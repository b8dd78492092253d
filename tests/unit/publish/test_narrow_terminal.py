"""The tables of `build` and `smoke` in a terminal of 80 columns: no cell is folded or cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.commands.building.build import build_text
from builder.commands.smoke import smoke_text
from builder.matrix.axes import AbiClass, Arch, Cell, Platform
from builder.matrix.plan import Build, Plan
from builder.proof import Check, Proof, Verdict
from builder.result import BuildResult, SmokeResult
from builder.store import StoredBuild
from tests.unit.wheels import make_record

WHEEL = "ms_deform_attn-0.1.0+cu130.torch2.11-cp310-abi3-manylinux_2_34_x86_64.whl"
CELLS = tuple(Cell.parse(f"torch2.11.0-cu130-cp3{minor}") for minor in (12, 13))
BUILD = Build(
    "ms_deform_attn", "0.1.0", AbiClass.ABI3, CELLS[0].torch, CELLS[0].cuda, (CELLS[0].python,), (Arch(9, 0),),
    Platform.LINUX_X86_64, CELLS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.publish.terminal.PLAIN_WIDTH", 80)


def proofs(cell: Cell) -> tuple[Proof, ...]:
    return tuple(Proof("ab", cell, check, Verdict.NOT_RUN if check.on_gpu else Verdict.PASSED) for check in Check)


def test_a_build_has_a_line_for_its_wheel_and_a_line_for_its_figures(tmp_path: Path) -> None:
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"w" * 5000)
    stored = StoredBuild("d" * 64, wheel, make_record.build_record())
    result = BuildResult(BUILD, stored, None, reused=True, seconds=1, proofs=proofs(CELLS[0]))
    lines = build_text(Path("dist"), Plan((BUILD,), ()), [result]).splitlines()
    assert lines[0] == WHEEL
    passed = sum(not check.on_gpu for check in Check)
    assert lines[1] == f"  5 KiB, 2 cells; checks: {passed} passed, 0 failed, 5 not run; GPU: not run; reused"


def test_several_cells_have_a_row_each_and_what_was_not_run_a_line() -> None:
    lines = smoke_text([SmokeResult(WHEEL, cell, proofs(cell), None) for cell in CELLS]).splitlines()
    assert lines[0] == WHEEL
    assert [each.split()[0] for each in lines[1:4]] == ["cell", *map(str, CELLS)]
    assert lines[-1] == "  not run   GPU           no reason given"
    assert all(len(line) <= 80 for line in lines)


def test_a_reason_that_all_wheels_share_is_printed_once() -> None:
    results = [SmokeResult(wheel, CELLS[0], proofs(CELLS[0]), None) for wheel in (WHEEL, WHEEL.replace("0.1", "0.2"))]
    assert smoke_text(results).count("no reason given") == 1


def test_what_failed_stands_last_with_what_to_do() -> None:
    failed = Proof("ab", CELLS[0], Check.IMPORT, Verdict.FAILED, "no module", {"hints": ["import torch first"]})
    lines = smoke_text([SmokeResult(WHEEL, CELLS[0], (*proofs(CELLS[0])[:3], failed), None)]).splitlines()
    assert lines[-2:] == ["  FAILED    import        no module", "  hint: import torch first"]
