"""The closing table, report.json, dist/, tables of 80 columns, the text of a plan, and the statement of provenance."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.cli.options import architectures_hint
from builder.commands.building.build import build_text, distinct_errors
from builder.commands.plan import plan_text
from builder.commands.smoke import smoke_text
from builder.errors import BuildError, BuildfarmError, Code, Exit
from builder.gate.outcome import CHECKED, LOST, MISTAKE_IN_CASES, RECORDED, REFUSED, Outcome
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import GitSource, SdistSource, Selection
from builder.matrix.load import read_plan
from builder.matrix.plan import Build, Plan, Skip, summarise_skips
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.op_gate import outcome_evidence, summary
from builder.publish.proof_lines import Gradient, gradients_of
from builder.publish.provenance import make_statement
from builder.publish.results import BuildResult, SmokeResult, publish_wheels, report_json
from builder.records import CacheStatistics, Part, Record, Toolchain
from builder.store import Store, StoredBuild, project_key
from builder.wheels.toolchain.uv import uv_command
from tests.conftest import ROOT
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
def stored(tmp_path: Path) -> StoredBuild:
    return stored_wheel(tmp_path / "store")


def result(
    stored: StoredBuild | None, made: Sequence[Proof] = (), *, error: BuildfarmError | None = None, reused: bool = False
) -> BuildResult:
    return BuildResult(build(), stored, error, reused=reused, seconds=61.4, proofs=tuple(made))


PLAN = Plan((build(),), ())
NO_WHEEL = result(None, error=BuildfarmError("no", Code.DISK_FULL))


def published(dist: Path, *results: BuildResult) -> None:
    """Publish these results in `dist`."""
    publish_wheels(dist, PLAN, results, Store(dist.parent / "store"))


def figures(text: str) -> list[str]:
    return text.splitlines()[1].strip().split("; ")


@pytest.mark.parametrize(
    ("gpu", "shown"),
    [
        pytest.param((NOT_RUN, NOT_RUN, NOT_RUN), "not run", id="nowhere"),
        pytest.param((), "not run", id="no proof"),
        pytest.param((PASSED, PASSED, PASSED), "passed", id="everywhere"),
        pytest.param((PASSED, NOT_RUN, NOT_RUN), "1 of 3", id="in one cell of three"),
        pytest.param((PASSED, FAILED, NOT_RUN), "failed", id="failed in one"),
    ],
)
def test_gpu_is_passed_only_if_every_cell_had_one(gpu: tuple[Verdict, ...], shown: str, stored: StoredBuild) -> None:
    assert figures(build_text(Path("dist"), PLAN, [result(stored, proofs(*gpu))]))[-2] == f"GPU: {shown}"


def test_reasons_are_grouped_and_not_read_as_markup(stored: StoredBuild) -> None:
    odd = "std::vector[0] is [red]not[/red] :here:"
    made = [
        Proof("ab", CELLS[0], Check.LINKAGE, FAILED, odd),
        *(Proof("ab", cell, Check.IMPORT, NOT_RUN, "no Python") for cell in CELLS[:2]),
        *(Proof("ab", cell, Check.GPU_VALUES, NOT_RUN, "no GPU") for cell in CELLS[:1]),
    ]
    lines = build_text(Path("dist"), PLAN, [result(stored, made)]).splitlines()
    assert f"  FAILED    linkage       {CELLS[0]}: {odd}" in lines
    assert "  not run   import        no Python" in lines
    assert f"  not run   GPU           {CELLS[0]}: no GPU" in lines
    assert not [line for line in lines if "pip install" in line]
    assert lines[0].endswith(" (refused)")


def test_equal_commands_are_printed_once_and_torch_comes_from_its_index(stored: StoredBuild, tmp_path: Path) -> None:
    older = Cell.parse("torch2.2.2-cu118-cp311")
    one = replace(result(stored, proofs(NOT_RUN)), build=replace(build(), serves=(older,)))
    text = build_text(tmp_path / "my dist", PLAN, [one, one], "https://mirror.example/{variant}")
    commands = [line for line in text.splitlines() if "pip install" in line]
    assert all(line.strip().startswith(name) for line, name in zip(commands, ("pip ", uv_command()), strict=True))
    for command in commands:
        assert f" --find-links '{tmp_path.resolve()}/my dist' " in command
        assert "https://mirror.example/cu118" in command
        assert command.endswith(" torch==2.2.2+cu118 'numpy<2'")


def test_a_refusal_names_the_cure_the_wheel_and_the_log(stored: StoredBuild, tmp_path: Path) -> None:
    failed = Proof("ab", CELLS[0], Check.IMPORT, FAILED, "import of ops failed: x", {"hints": ["import torch first"]})
    refused = replace(result(stored, [failed]), log=tmp_path / "ops.log")
    hints = [
        "import torch first",
        f"the refused wheel is {stored.wheel}",
        f"the full output is in {tmp_path / 'ops.log'}",
    ]
    lines = build_text(Path("dist"), PLAN, [refused]).splitlines()
    assert lines[-4] == "  FAILED    import        import of ops failed: x"
    assert lines[-3:] == [f"  hint: {hint}" for hint in hints]
    (entry,) = json.loads(report_json(PLAN, [refused]))["builds"]
    assert entry["error"] == f"{build()}: import: import of ops failed: x"
    assert entry["hints"] == hints


@pytest.mark.parametrize("check", ["opcheck", "fake", "devices", "export", "compile"])
def test_a_refusal_for_a_check_that_ops_may_not_support_names_not_claimed(stored: StoredBuild, check: str) -> None:
    failed = Proof("ab", CELLS[0], Check(check), FAILED, "ops::f: the fake kernel raises x", {})
    text = build_text(Path("dist"), PLAN, [result(stored, [failed, replace(failed, check=Check.VALUES)])])
    assert f'hint: if the op does not support `{check}`, write `not_claimed={{"{check}": REASON}}` in its Case' in text
    assert 'values":' not in text


def test_accepted_findings_and_remarks_are_shown_and_do_not_refuse(stored: StoredBuild, tmp_path: Path) -> None:
    made = [
        Proof("ab", CELLS[0], Check.FAKE, Verdict.ACCEPTED, "no fake kernel", {"accepted": "upstream has none"}),
        Proof("ab", CELLS[0], Check.LOADED, NOT_RUN, "no import loads x.so", {"remark": True}),
        Proof("ab", CELLS[0], Check.OPS, PASSED),
    ]
    text = build_text(Path("dist"), PLAN, [result(stored, made)])
    assert figures(text)[1] == "checks: 1 passed, 0 failed, 0 not run, 1 accepted, 1 remark"
    assert "  remark    loaded        no import loads x.so" in text.splitlines()
    accepted = "  accepted  fake          no fake kernel (accepted: upstream has none)"
    assert accepted in text.splitlines()
    published(tmp_path / "dist", result(stored, made))
    statement = json.loads((tmp_path / "dist" / f"{stored.wheel.name}.intoto.json").read_text())
    assert statement["predicate"]["runDetails"]["buildfarm_accepted"] == [
        {"check": "fake", "cell": str(CELLS[0]), "finding": "no fake kernel", "reason": "upstream has none"}
    ]
    (entry,) = json.loads((tmp_path / "dist" / "report.json").read_text())["builds"]
    assert (entry["status"], entry["proofs"][0]["verdict"]) == ("built", "accepted")


def test_another_minor_version_is_printed(stored: StoredBuild) -> None:
    parts = {Part.NVCC: "12.4.131", Part.REQUESTED_CUDA: "CUDA 12.1"}
    toolchain = Toolchain(executor="local", python=Python(3, 11), others=parts)
    record = replace(stored.record, record=replace(stored.record.record, toolchain=toolchain))
    text = build_text(Path("dist"), PLAN, [result(replace(stored, record=record))])
    assert f"{build()}: compiled with CUDA 12.4.131 instead of CUDA 12.1" in text


def test_steps_that_the_compiler_cache_saved_are_counted(stored: StoredBuild) -> None:
    objects = CacheStatistics(reused=4, compiled=1)
    stored = replace(stored, record=replace(stored.record, objects=objects))
    line = "compiler cache: 4 of 5 steps reused"
    assert f"{build()}: {line}" in build_text(Path("dist"), PLAN, [result(stored)])
    assert "compiler cache:" not in build_text(Path("dist"), PLAN, [result(stored, reused=True)]), (
        "nothing was compiled"
    )


def test_gpu_code_beyond_the_plan_is_named_with_its_cost(stored: StoredBuild) -> None:
    evidence = {"beyond": {"sm_80": 3 * 2**20, "compute_80": 2**19}}
    proof = Proof("ab", None, Check.DEVICE_CODE, Verdict.PASSED, "", evidence, "now")
    beyond = replace(result(stored), proofs=(proof,))
    line = "device-code   the wheel also has sm_80, compute_80; the plan asks for 9.0. This extra code costs 3.5 MiB."
    assert f"{line} `override_architectures: true`" in build_text(Path("dist"), PLAN, [beyond])
    assert "also has" not in build_text(Path("dist"), PLAN, [result(stored)])


def test_skipped_cells_are_counted(stored: StoredBuild) -> None:
    skip = Skip(Cell(Torch(2, 2, 0), Cuda(13, 0), Python(3, 12)), "", "code", "because")
    assert "2 cells are skipped" in build_text(Path("dist"), Plan((build(),), (skip, skip)), [result(stored)])


def test_without_any_wheel_there_is_no_table() -> None:
    assert build_text(Path("dist"), PLAN, [NO_WHEEL]) == ""


def test_equal_errors_are_grouped_with_the_builds_they_stopped() -> None:
    results = [
        replace(result(None, error=BuildfarmError("no torch", Code.DISK_FULL)), build=build("a")),
        replace(result(None, error=BuildfarmError("no disk", Code.DISK_FULL)), build=build("b")),
        replace(result(None, error=BuildfarmError("no torch", Code.DISK_FULL)), build=build("c")),
        replace(result(None), build=build("d")),
    ]
    grouped = [(str(error), [name.split("-")[0] for name in names]) for error, names in distinct_errors(results)]
    assert grouped == [("no torch", ["a", "c"]), ("no disk", ["b"])]


@pytest.mark.parametrize(
    ("made", "error", "good"),
    [
        pytest.param(proofs(NOT_RUN), None, True, id="nothing failed"),
        pytest.param(proofs(linkage=FAILED), None, False, id="a check failed"),
        pytest.param(proofs(FAILED), None, False, id="on the GPU"),
        pytest.param((), BuildError("disk full", stage="verify"), False, id="the checks did not finish"),
    ],
)
def test_only_a_wheel_without_a_failed_check_is_published(
    made: tuple[Proof, ...], error: BuildfarmError | None, good: bool, stored: StoredBuild, tmp_path: Path
) -> None:
    dist = tmp_path / "dist"
    published(dist, result(stored, made, error=error), NO_WHEEL)
    assert [path.name for path in dist.glob("*.whl")] == ([stored.wheel.name] if good else [])
    assert (dist / "report.json").is_file()


WHY = "a check of this wheel failed; the next `build` in which no check fails adds it again, without a compile"


def test_what_happens_to_the_wheel_of_an_earlier_run(
    stored: StoredBuild, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dist, name = tmp_path / "dist", stored.wheel.name
    good, bad = result(stored, proofs(NOT_RUN)), result(stored, proofs(linkage=FAILED))

    def run(*results: BuildResult) -> tuple[str, bool]:
        published(dist, *results)
        return capsys.readouterr().err.replace(f"{dist}: ", "").strip(), (dist / name).exists()

    assert run(good) == (f"added {name}", True)
    assert run(good) == ("", True)
    assert run(NO_WHEEL) == (f"kept {name} of an earlier run: the new build failed", True)
    other_python = replace(build(), abi=AbiClass.CPYTHON, pythons=(Python(3, 12),))
    assert run(replace(NO_WHEEL, build=other_python)) == ("", True)
    stored.wheel.write_bytes(b"new")
    assert run(bad) == (f"kept {name} of an earlier run: a check of the new wheel failed", True)
    assert run(good) == (f"replaced {name}", True)
    assert run(bad) == (f"warning: removed {name}: {WHY}", False)


def test_a_wheel_for_abi3t_is_of_another_build_of_the_same_version(
    stored: StoredBuild, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = tmp_path / "dist" / stored.wheel.name.replace("cp311-abi3", "cp315-abi3.abi3t")
    late.parent.mkdir()
    late.touch()
    published(late.parent, result(stored, proofs(NOT_RUN)))
    assert late.exists()
    published(late.parent, replace(NO_WHEEL, build=replace(build(), pythons=(Python(3, 15, free_threaded=True),))))
    assert f"kept {late.name} of an earlier run: the new build failed" in capsys.readouterr().err


def test_a_wheel_with_the_earlier_form_of_the_version_is_of_the_same_build(
    stored: StoredBuild, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dist, name = tmp_path / "dist", stored.wheel.name
    earlier = dist / name.replace("torch2.11", "torch211")
    dist.mkdir()
    earlier.write_bytes(b"earlier")
    (dist / "ops-1.0+cu130.torch210-cp311-abi3-manylinux_2_28_x86_64.whl").touch()
    published(dist, NO_WHEEL)
    assert f"kept {earlier.name} of an earlier run: the new build failed" in capsys.readouterr().err
    published(dist, result(stored, proofs(NOT_RUN)))
    assert f"removed {earlier.name}: {name} replaces it" in capsys.readouterr().err
    assert [path.name for path in sorted(dist.glob("*.whl"))] == [
        "ops-1.0+cu130.torch2.11-cp311-abi3-manylinux_2_28_x86_64.whl",
        "ops-1.0+cu130.torch210-cp311-abi3-manylinux_2_28_x86_64.whl",
    ]


def of_gate(*outcomes: Outcome, cell: Cell = CELLS[0]) -> list[Proof]:
    """A proof for each check of these outcomes, as `build` makes them."""
    return [
        Proof("ab", cell, Check(check), *summary(found), evidence=outcome_evidence(found))
        for check in dict.fromkeys(one.check for one in outcomes)
        if (found := [one for one in outcomes if one.check == check])
    ]


def test_the_gradient_of_each_op_is_told(stored: StoredBuild, tmp_path: Path) -> None:
    made = of_gate(
        Outcome("gradients", "ns::good", "plain", PASSED, "1 dtype", evidence={"gradient": CHECKED}),
        Outcome("gradients", "ns::good", "other", NOT_RUN, "no GPU"),
        Outcome("gradients", "ns::lost", "plain", NOT_RUN, "it has none", evidence={"gradient": LOST}, remark=True),
        Outcome("gradients", "ns::first", "plain", PASSED, "backward raises", evidence={"gradient": REFUSED}),
        Outcome("gradients", "ns::untested", "plain", NOT_RUN, "no case tests it"),
        Outcome("gradients", "ns::branch", "plain", NOT_RUN, "on the CPU", evidence={"gradient": RECORDED}),
        Outcome("gradients", "ns::both", "plain", NOT_RUN, "on the CPU", evidence={"gradient": RECORDED}),
        Outcome("gpu-values", "ns::both", "plain", PASSED),
        Outcome("gradients", "ns::meant", "plain", NOT_RUN, "not claimed: for inference"),
        Outcome("gradients", "", "", NOT_RUN, "no cases"),
        Outcome("values", "ns::other", "plain", PASSED),
    )
    elsewhere = of_gate(Outcome("gradients", "ns::untested", "plain", FAILED, "1 is not 2"), cell=CELLS[1])
    assert gradients_of(made + elsewhere) == {
        "ns::good": Gradient.CHECKED_ON_CPU,
        "ns::lost": Gradient.LOST,
        "ns::first": Gradient.REFUSED,
        "ns::untested": Gradient.WRONG,
        "ns::branch": Gradient.RECORDED,
        "ns::both": Gradient.CHECKED,
        "ns::meant": Gradient.NOT_CLAIMED,
    }
    text = " ".join(build_text(tmp_path, PLAN, [result(stored, made)]).split())
    assert (
        "gradients: none: the gradients of the inputs are lost (ns::lost); yes, checked (ns::both); yes, checked"
        " on the CPU (ns::good); none: backward raises an error (ns::first); not claimed in cases.py (ns::meant); on"
        " the CPU only, not run on CUDA (ns::branch); not run (ns::untested)" in text
    )
    report = json.loads(report_json(PLAN, [result(stored, made)]))
    assert report["builds"][0]["gradients"]["ns::lost"] == "none: the gradients of the inputs are lost"


MISTAKE = dict(MISTAKE_IN_CASES)
UNREADABLE = Outcome("ops", "", "", FAILED, "cases.py cannot be imported", evidence=MISTAKE)
UNKNOWN = Outcome("ops", "ns::ad", "plain", FAILED, "no such op", evidence={**MISTAKE, "unknown": True})
TYPO_IN_INPUTS = Outcome("values", "ns::add", "plain", FAILED, "the inputs raise NameError", evidence=MISTAKE)
REAL = Outcome("values", "ns::add", "plain", FAILED, "1 is not 2")
FOUND = Outcome("ops", "ns::add", "", PASSED)


@pytest.mark.parametrize(
    ("made", "mistake"),
    [
        pytest.param(of_gate(UNREADABLE), True, id="cases.py cannot be imported"),
        pytest.param(of_gate(FOUND, UNKNOWN), True, id="an op that does not exist"),
        pytest.param(of_gate(FOUND, TYPO_IN_INPUTS), True, id="inputs with a mistake"),
        pytest.param(of_gate(FOUND), False, id="nothing failed"),
        pytest.param(of_gate(UNKNOWN, REAL), False, id="an op fails too"),
        pytest.param(of_gate(TYPO_IN_INPUTS, REAL), False, id="an op fails in the same check"),
        pytest.param([*of_gate(UNREADABLE), *proofs(linkage=FAILED)], False, id="linkage fails too"),
        pytest.param(
            [*of_gate(UNKNOWN), *of_gate(replace(FOUND, op="ns::ad"), cell=CELLS[1])], False, id="the op is in a cell"
        ),
    ],
)
def test_a_wheel_stays_if_only_cases_py_is_wrong(
    made: list[Proof], mistake: bool, stored: StoredBuild, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says that the run failed, and no new wheel is added."""
    dist, name = tmp_path / "dist", stored.wheel.name
    failed = result(stored, made)
    assert failed.mistake_in_cases is mistake
    if not failed.refused:
        return
    assert failed.exit == Exit.FAILED
    published(tmp_path / "other", failed)
    assert not list((tmp_path / "other").glob("*.whl"))
    published(dist, result(stored, proofs(NOT_RUN)))
    published(dist, failed)
    assert (dist / name).exists() is mistake
    if mistake:
        assert f"kept {name}: only cases.py is wrong" in capsys.readouterr().err
        text = build_text(dist, PLAN, [failed])
        assert f"{name} (cases.py is wrong)" in text
        assert "hint: correct cases.py and run the same command again" in text
        assert "refused" not in text


def test_publishing_again_writes_only_changed_files(stored: StoredBuild, tmp_path: Path) -> None:
    good, dist = result(stored, proofs(NOT_RUN)), tmp_path / "dist"
    published(dist, good)
    before = {path.name: path.stat().st_ino for path in dist.iterdir()}
    published(dist, good)
    assert {path.name: path.stat().st_ino for path in dist.iterdir()} == before
    (dist / stored.wheel.name).write_bytes(b"different")
    published(dist, good)
    assert (dist / stored.wheel.name).read_bytes() == stored.wheel.read_bytes()


def test_the_provenance_is_published_and_deleted_with_its_wheel(stored: StoredBuild, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    published(dist, result(stored, proofs(NOT_RUN)))
    statement = dist / f"{stored.wheel.name}.intoto.json"
    assert statement.is_file()
    (entry,) = json.loads((dist / "report.json").read_text())["builds"]
    assert entry["provenance"] == {"statement": statement.name, "signed": False}
    published(dist, result(stored, proofs(linkage=FAILED)))
    assert not statement.exists()


def test_report_json(stored: StoredBuild) -> None:
    skip = Skip(Cell(Torch(2, 2, 0), Cuda(13, 0), Python(3, 12)), "ops", "no-wheel", "because")
    results = [
        result(stored, proofs(NOT_RUN)),
        result(stored, proofs(linkage=FAILED, reason="foo is missing")),
        result(None, error=BuildError("a.cu:3", stage="compile", where="ops", hints=["look"])),
    ]
    data = json.loads(report_json(Plan((build(),), (skip,)), results))
    good, refused, broken = data["builds"]
    assert [entry["status"] for entry in data["builds"]] == ["built", "failed", "failed"]
    assert good["wheel"] == stored.wheel.name
    assert (good["size"], good["digest"]) == (5000, "d" * 64)
    assert good["record"] == stored.record.to_json() | {"wheel": stored.wheel.name}
    assert [proof["verdict"] for proof in good["proofs"] if proof["check"] == "gpu-values"] == ["not run"]
    assert good["serves"] == [str(cell) for cell in CELLS]
    assert [Proof.from_json(proof).reason for proof in refused["proofs"]] == ["", "foo is missing"]
    assert (broken["error"], broken["hints"]) == ("ops: a.cu:3", ["look"])
    assert "wheel" not in broken
    assert data["skips"][0] | {"code": "no-wheel", "reason": "because", "cuda": "13.0"} == data["skips"][0]


WHEEL = "ms_deform_attn-0.1.0+cu130.torch2.11-cp310-abi3-manylinux_2_34_x86_64.whl"


def every_proof(cell: Cell) -> tuple[Proof, ...]:
    return tuple(Proof("ab", cell, check, NOT_RUN if check.on_gpu else PASSED) for check in Check)


def test_a_build_has_a_line_for_its_wheel_and_one_for_its_figures(stored: StoredBuild) -> None:
    lines = build_text(Path("dist"), PLAN, [result(stored, every_proof(CELLS[0]), reused=True)]).splitlines()
    assert lines[0] == stored.wheel.name
    passed = sum(not check.on_gpu for check in Check)
    assert lines[1] == f"  5 KiB, 3 cells; checks: {passed} passed, 0 failed, 5 not run; GPU: not run; reused"


def test_several_cells_have_a_line_each_and_so_has_what_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.publish.terminal.PLAIN_WIDTH", 80)
    lines = smoke_text([SmokeResult(WHEEL, cell, every_proof(cell), None) for cell in CELLS]).splitlines()
    assert lines[0] == WHEEL
    assert [each.split(": ")[0] for each in lines[1:4]] == [f"  {cell}" for cell in CELLS]
    assert lines[-1] == "  not run   GPU           no reason given"
    assert all(len(line) <= 80 for line in lines)


def test_a_reason_that_all_wheels_share_is_printed_once() -> None:
    results = [
        SmokeResult(wheel, CELLS[0], every_proof(CELLS[0]), None) for wheel in (WHEEL, WHEEL.replace("0.1", "0.2"))
    ]
    assert smoke_text(results).count("no reason given") == 1


def test_what_failed_stands_last_with_what_to_do() -> None:
    failed = Proof("ab", CELLS[0], Check.IMPORT, FAILED, "no module", {"hints": ["import torch first"]})
    lines = smoke_text([SmokeResult(WHEEL, CELLS[0], (*every_proof(CELLS[0])[:3], failed), None)]).splitlines()
    assert lines[-2:] == ["  FAILED    import        no module", "  hint: import torch first"]


def test_the_explained_plan_of_a_large_matrix_can_be_read() -> None:
    _, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    assert len(plan.skips) > 700
    lines = plan_text(plan, explain=True).splitlines()
    assert len(lines) < 700
    reasons = [line for line in lines if re.match(r" +\d+  ", line)]
    assert len(reasons) == len(set(reasons)) == len(summarise_skips(plan)), "each reason once"


def test_the_hint_names_the_number_of_architectures_and_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = build(), replace(build(), archs=(Arch(8, 0), Arch(9, 0, ptx=True)))
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    assert architectures_hint([]) == architectures_hint([one]) == ""
    hint = architectures_hint([two])
    assert "for up to 2 GPU architectures" in architectures_hint([one, two])
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    assert architectures_hint([two]) == f"{hint} TORCH_CUDA_ARCH_LIST is not read."


def test_a_farm_holds_the_folder_while_it_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, dist = [], tmp_path / "dist"

    def clean(dist: Path) -> None:
        with Store(tmp_path / "store").lock(f"dist-{project_key(dist)}", wait=False) as free:
            seen.append(free)

    monkeypatch.setattr("builder.publish.results.remove_temporary_files", clean)
    published(dist)
    assert seen == [False]


def stored_wheel(folder: Path, record: Record | None = None) -> StoredBuild:
    folder.mkdir(exist_ok=True)
    wheel = folder / "ops-1.0+cu130.torch2.11-cp311-abi3-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(b"w" * 5000)
    return StoredBuild("d" * 64, wheel, make_record.build_record(record, provided=frozenset({"libtorch.so"})))


def statement(wheel: StoredBuild) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(make_statement(wheel))
    return data


def test_the_fields_and_the_subject(tmp_path: Path) -> None:
    wheel = stored_wheel(tmp_path)
    data = statement(wheel)
    assert data["_type"] == "https://in-toto.io/Statement/v1"
    assert data["predicateType"] == "https://slsa.dev/provenance/v1"
    sha256 = hashlib.sha256(b"w" * 5000).hexdigest()
    assert data["subject"] == [{"name": wheel.wheel.name, "digest": {"sha256": sha256}}]
    definition, details = data["predicate"]["buildDefinition"], data["predicate"]["runDetails"]
    assert set(definition) == {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
    assert definition["externalParameters"]["archs"] == ["8.0", "9.0+PTX"]
    assert definition["internalParameters"]["toolchain"]["nvcc"] == "13.0.88"
    assert details["builder"]["id"] == "urn:buildfarm:executor:local"
    assert details["metadata"]["startedOn"] == "2026-01-02T03:04:05Z"
    assert details["metadata"]["finishedOn"] == "2026-01-02T03:05:05Z"
    assert "unsigned" in details["buildfarm_signature"]


def dependencies(wheel: StoredBuild) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = statement(wheel)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert all({"uri", "digest", "content"} & set(each) for each in found)  # in-toto's ResourceDescriptor requires one
    return found


def test_every_input_is_listed(tmp_path: Path) -> None:
    patch = tmp_path / "a.patch"
    patch.write_text("--- a\n")
    record = make_record.record(
        make_record.TOOLCHAIN.having({Part.BASE: "debian:13", Part.BASE_DIGEST: "sha256:" + "e" * 64}),
        source=SdistSource("ops-cuda", "1.0", "ab" * 32),
        patches=(patch,),
    )
    source, changed, base, *packages = dependencies(stored_wheel(tmp_path / "store", record))
    assert source == {"name": "source", "uri": "pkg:pypi/ops-cuda@1.0", "digest": {"sha256": "ab" * 32}}
    assert changed["digest"] == {"sha256": hashlib.sha256(b"--- a\n").hexdigest()}
    assert base == {"name": "base image", "uri": "docker://debian:13", "digest": {"sha256": "e" * 64}}
    assert {"uri": "pkg:pypi/torch@2.11.0"} in packages


def test_git_sources_and_local_sources(tmp_path: Path) -> None:
    git = make_record.record(source=GitSource("https://example.org/ops.git", "c" * 40))
    assert dependencies(stored_wheel(tmp_path, git))[0]["digest"] == {"gitCommit": "c" * 40}
    assert dependencies(stored_wheel(tmp_path))[0]["digest"] == {"buildfarm_source_1": "5" * 64}
