"""What is read at the end: a refused wheel is not handed over, and what was not run is never shown as passed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import BuildError, FarmError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.plan import Build, Plan, Skip
from builder.proof import Check, Proof, Verdict
from builder.publish.report import build_text, failures, hand_over, report_json
from builder.result import Result
from builder.store import Stored
from builder.wheels.build import Toolchain
from builder.wheels.objects import Objects, Outcome, Reuse
from tests.unit.wheels import make_record

CELLS = tuple(Cell.parse(f"torch2.11.0-cu130-cp3{minor}") for minor in (11, 12, 13))
PASSED, FAILED, NOT_RUN = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_RUN


def build(name: str = "ops") -> Build:
    return Build(
        name, "1.0", AbiClass.ABI3, Torch(2, 11, 0), Cuda(13, 0), (Python(3, 11),), (Arch(9, 0),),
        Platform.LINUX_X86_64, CELLS,
    )  # fmt: skip


def proofs(*gpu: Verdict, linkage: Verdict = PASSED, reason: str = "") -> tuple[Proof, ...]:
    made = [Proof("ab", None, Check.TAGS, PASSED), Proof("ab", CELLS[0], Check.LINKAGE, linkage, reason)]
    return (*made, *(Proof("ab", cell, Check.GPU_VALUES, verdict) for cell, verdict in zip(CELLS, gpu, strict=False)))


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    folder = tmp_path / "store"
    folder.mkdir()
    wheel = folder / "ops-1.0+cu130.torch211-cp311-abi3-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(b"w" * 5000)
    return Stored("d" * 64, wheel, {"seconds": 1.5})


def result(
    stored: Stored | None, made: Sequence[Proof] = (), *, error: FarmError | None = None, reused: bool = False
) -> Result:
    return Result(build(), stored, error, reused=reused, seconds=61.4, proofs=tuple(made))


PLAN = Plan((build(),), ())


def row(text: str) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[1].split("  ") if cell.strip()]


@pytest.mark.parametrize(
    ("gpu", "shown"),
    [
        pytest.param((NOT_RUN, NOT_RUN, NOT_RUN), "not run", id="nowhere"),
        pytest.param((), "not run", id="nobody asked"),
        pytest.param((PASSED, PASSED, PASSED), "passed", id="everywhere"),
        pytest.param((PASSED, NOT_RUN, NOT_RUN), "1 of 3", id="in one cell of three"),
        pytest.param((PASSED, FAILED, NOT_RUN), "failed", id="failed in one"),
    ],
)
def test_gpu_is_passed_only_where_all_cells_ran_on_one(gpu: tuple[Verdict, ...], shown: str, stored: Stored) -> None:
    assert row(build_text(Path("dist"), PLAN, [result(stored, proofs(*gpu))]))[-2] == shown


def test_the_figures_of_a_row(stored: Stored) -> None:
    made = proofs(NOT_RUN, NOT_RUN, NOT_RUN)
    assert row(build_text(Path("dist"), PLAN, [result(stored, made)])) == [
        stored.wheel.name, "5 KiB", "3", "2", "0", "3", "not run", "61 s",
    ]  # fmt: skip
    assert row(build_text(Path("dist"), PLAN, [result(stored, made, reused=True)]))[-1] == "kept"


def test_reasons_are_grouped_and_printed_as_they_are(stored: Stored) -> None:
    odd = "std::vector[0] is [red]not[/red] :here:"
    made = [
        Proof("ab", CELLS[0], Check.LINKAGE, FAILED, odd),
        *(Proof("ab", cell, Check.IMPORT, NOT_RUN, "no Python") for cell in CELLS[:2]),
        *(Proof("ab", cell, Check.GPU_VALUES, NOT_RUN, "no GPU") for cell in CELLS[:1]),
    ]
    lines = build_text(Path("dist"), PLAN, [result(stored, made)]).splitlines()
    assert f"refused: {build()}: linkage in {CELLS[0]}: {odd}" in lines
    assert "import: not run in 2 cells: no Python" in lines
    assert f"GPU: not run in {CELLS[0]}: no GPU" in lines
    assert not [line for line in lines if "pip install" in line]
    assert "(refused)" in lines[1]


def test_a_good_wheel_comes_with_the_command_that_installs_it(stored: Stored, tmp_path: Path) -> None:
    text = build_text(tmp_path / "my dist", PLAN, [result(stored, proofs(NOT_RUN))])
    (command,) = (line for line in text.splitlines() if "pip install" in line)
    assert "ops==1.0+cu130.torch211" in command
    assert "my%20dist/simple" in command


def test_a_stand_in_is_said_out_loud(stored: Stored) -> None:
    toolchain = Toolchain("local", Python(3, 11), (("nvcc", "12.4.131"), ("stands in for", "CUDA 12.1")))
    text = build_text(Path("dist"), PLAN, [replace(result(stored), toolchain=toolchain)])
    assert f"{build()}: compiled with CUDA 12.4.131, a stand-in for CUDA 12.1" in text


def test_objects_taken_from_the_cache_are_named(stored: Stored) -> None:
    objects = Objects((Reuse("csrc/a.cu", "CUDA", Outcome.REUSED), Reuse("csrc/b.cpp", "C++", Outcome.COMPILED)))
    stored = replace(stored, record=stored.record | {"objects": objects.to_json()})
    said = "objects: 1 reused (csrc/a.cu); 1 compiled (csrc/b.cpp)"
    assert f"{build()}: {said}" in build_text(Path("dist"), PLAN, [result(stored)])
    assert "objects:" not in build_text(Path("dist"), PLAN, [result(stored, reused=True)]), "nothing was compiled"


def test_skipped_cells_are_counted(stored: Stored) -> None:
    skip = Skip(Torch(2, 2, 0), Cuda(13, 0), Python(3, 12), "", "code", "because")
    assert "2 cells are skipped" in build_text(Path("dist"), Plan((build(),), (skip, skip)), [result(stored)])


def test_without_any_wheel_there_is_no_table() -> None:
    assert build_text(Path("dist"), PLAN, [result(None, error=FarmError("no"))]) == ""


def test_the_same_failure_is_told_once_with_all_it_stopped() -> None:
    results = [
        replace(result(None, error=FarmError("no torch")), build=build("a")),
        replace(result(None, error=FarmError("no disk")), build=build("b")),
        replace(result(None, error=FarmError("no torch")), build=build("c")),
        replace(result(None), build=build("d")),
    ]
    told = [(str(error), [name.split("-")[0] for name in names]) for error, names in failures(results)]
    assert told == [("no torch", ["a", "c"]), ("no disk", ["b"])]


@pytest.mark.parametrize(
    ("made", "error", "handed"),
    [
        pytest.param(proofs(NOT_RUN), None, True, id="nothing failed"),
        pytest.param(proofs(linkage=FAILED), None, False, id="a check failed"),
        pytest.param(proofs(FAILED), None, False, id="on the GPU"),
        pytest.param((), BuildError("disk full", stage="verify"), False, id="it could not be checked"),
    ],
)
def test_only_a_wheel_without_a_failed_check_is_handed_over(
    made: tuple[Proof, ...], error: FarmError | None, handed: bool, stored: Stored, tmp_path: Path
) -> None:
    dist = tmp_path / "dist"
    paths = hand_over(dist, PLAN, [result(stored, made, error=error), result(None, error=FarmError("no"))])
    assert paths == ([dist / stored.wheel.name] if handed else [])
    assert [path.name for path in dist.glob("*.whl")] == ([stored.wheel.name] if handed else [])
    assert (dist / "report.json").is_file()


def test_handing_over_again_touches_nothing_that_is_the_same(stored: Stored, tmp_path: Path) -> None:
    results = [result(stored, proofs(NOT_RUN))]
    hand_over(tmp_path / "dist", PLAN, results)
    before = {path.name: path.stat().st_ino for path in (tmp_path / "dist").iterdir()}
    hand_over(tmp_path / "dist", PLAN, results)
    assert {path.name: path.stat().st_ino for path in (tmp_path / "dist").iterdir()} == before
    (tmp_path / "dist" / stored.wheel.name).write_bytes(b"another")
    hand_over(tmp_path / "dist", PLAN, results)
    assert (tmp_path / "dist" / stored.wheel.name).read_bytes() == stored.wheel.read_bytes()


def test_a_statement_goes_and_comes_with_its_wheel(stored: Stored, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    told = Stored(
        stored.digest, stored.wheel, {**make_record.record().to_json(), "started": "2026-01-02", "seconds": 1.5}
    )
    hand_over(dist, PLAN, [result(told, proofs(NOT_RUN))])
    statement = dist / f"{stored.wheel.name}.intoto.json"
    assert statement.is_file()
    (entry,) = json.loads((dist / "report.json").read_text())["builds"]
    assert entry["provenance"] == {"statement": statement.name, "signed": False}
    hand_over(dist, PLAN, [result(told, proofs(linkage=FAILED))])
    assert not statement.exists()


def test_the_report_for_programs(stored: Stored) -> None:
    skip = Skip(Torch(2, 2, 0), Cuda(13, 0), Python(3, 12), "ops", "no-wheel", "because")
    results = [
        result(stored, proofs(NOT_RUN)),
        result(stored, proofs(linkage=FAILED, reason="foo is missing")),
        result(None, error=BuildError("a.cu:3", stage="compile", where="ops", hints=["look"])),
    ]
    data = json.loads(report_json(Plan((build(),), (skip,)), results))
    good, refused, broken = data["builds"]
    assert [entry["status"] for entry in data["builds"]] == ["built", "failed", "failed"]
    assert good["wheel"] == stored.wheel.name
    assert (good["size"], good["digest"], good["record"]) == (5000, "d" * 64, {"seconds": 1.5})
    assert [proof["verdict"] for proof in good["proofs"] if proof["check"] == "gpu-values"] == ["not run"]
    assert good["serves"] == [str(cell) for cell in CELLS]
    assert [Proof.from_json(proof).reason for proof in refused["proofs"]] == ["", "foo is missing"]
    assert (broken["error"], broken["hints"]) == ("ops: a.cu:3", ["look"])
    assert "wheel" not in broken
    assert data["skips"][0] | {"code": "no-wheel", "reason": "because", "cuda": "13.0"} == data["skips"][0]


def test_the_times_of_a_run_are_not_in_the_report(stored: Stored) -> None:
    one = result(stored, proofs(NOT_RUN))
    assert report_json(PLAN, [one]) == report_json(PLAN, [replace(one, seconds=0.1, reused=True)])
