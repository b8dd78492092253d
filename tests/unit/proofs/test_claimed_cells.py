"""Proofs of a cell: what a wheel claims, the answer of the gate as verdicts, and findings that are accepted."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Accept, Answer, Outcome
from builder.gate.system import nvidia
from builder.matrix.axes import AbiClass, Cell, Platform
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells import driver, op_gate
from builder.proofs.cells.op_gate import GATE_CHECKS, CellProofs, apply_accepts, gate_basis, run_gate
from builder.proofs.claimed_cells import (
    CellClaims,
    abi_class,
    claimed_cells,
    foreign_claim,
    provided_by_torch,
    uses_torch,
)
from builder.proofs.static.metadata import check_metadata
from builder.publish.proof_lines import failed_lines
from builder.wheelfile.facts import WheelFacts
from tests.unit.canned_gate import WHERE, answer
from tests.unit.matrix import make
from tests.unit.proofs.make import library, wheel_facts

URL = "https://download.example/whl/cu130/torch-2.11.0%2Bcu130-cp312-cp312-manylinux_2_28_x86_64.whl"
PINNED = "METADATA requires torch==2.11.0+cu130"
ANY_PYTHON = "cp310-abi3-manylinux_2_28_x86_64"


def facts(version: str = "1.0", *requires: str, tag: str = ANY_PYTHON, needed: tuple[str, ...] = ()) -> WheelFacts:
    return wheel_facts(library(needed=needed), version=version, requires_dist=requires, tag=tag)


def why_not(wheel: WheelFacts, cell: str) -> str:
    found = CellClaims(wheel).why_not(Cell.parse(cell))
    return f"{found.axis} {found.value}: {found.reason}" if found else ""


EXTRA, MARKED = 'torch==2.4.0; extra == "old"', 'torch==2.4.0; python_version < "3.12"'
NONSENSE = 'torch==2.11.*; python_version ~= "abc"'
LATE, WITHOUT_CUDA = facts("1.0+torch2120cu132"), "names a build without CUDA, and every cell has CUDA"
FADED = facts(needed=("libcudart.faf08d9a.so.13", "libtorch.so"))
#: A wheel, a cell without its platform, and why the wheel does not claim it.
CLAIMS: list[tuple[WheelFacts, str, str]] = [
    (facts("1.0", "torch==2.11.0"), "2.11.0-cu130-cp312", ""),
    (facts("1.0", "torch==2.11.0"), "2.12.0-cu130-cp312", "torch 2.12: METADATA requires torch==2.11.0"),
    (facts("1.0", "torch==2.11.0+cu130"), "2.11.0-cu130-cp312", ""),
    (facts("1.0", "torch==2.11.0+cu130"), "2.11.0-cu126-cp312", f"CUDA 12.6: {PINNED}"),
    (facts("1.0", f"torch @ {URL}"), "2.11.0-cu130-cp312", ""),
    (facts("1.0", f"torch @ {URL}#sha256=ab"), "2.12.0-cu130-cp312", f"torch 2.12: {PINNED}"),
    (facts("1.0", f"torch @ {URL}"), "2.11.0-cu126-cp312", f"CUDA 12.6: {PINNED}"),
    (facts("1.0", "torch @ https://download.example/torch-new.whl"), "2.11.0-cu126-cp312", ""),
    (facts("1.0", EXTRA, "torch>=2.10"), "2.11.0-cu130-cp312", ""),
    (facts("1.0", MARKED, "torch"), "2.11.0-cu130-cp312", ""),
    (facts("1.0", "not a requirement", "torch>=2.10"), "2.11.0-cu130-cp312", ""),
    (facts("1.0", NONSENSE), "2.12.0-cu130-cp312", "torch 2.12: METADATA requires torch==2.11.*"),
    (facts("1.0", 'torch; extras == "x"'), "2.11.0-cu130-cp312", ""),
    (facts("1.0+pt24cu121", "torch"), "2.4.1-cu121-cp312", ""),
    (facts("1.0+pt24cu121", "torch"), "2.4.1-cu124-cp312", "CUDA 12.4: the version 1.0+pt24cu121 names cu121"),
    (facts("1.0+pt24cu121"), "2.5.1-cu121-cp312", "torch 2.5: the version 1.0+pt24cu121 names torch 2.4"),
    (facts("1.0+cu12torch2.4cxx11abiFALSE"), "2.4.0-cu121-cp312", ""),
    (facts("1.0+cu130.torch211"), "2.11.0-cu130-cp312", ""),
    (facts("1.0+cu130.torch2.11"), "2.11.0-cu130-cp312", ""),
    (LATE, "2.12.0-cu132-cp312", ""),
    (LATE, "2.1.0-cu121-cp311", "torch 2.1: the version 1.0+torch2120cu132 names torch 2.12"),
    (facts("1.0+cu.12.8.torch.2.11"), "2.11.0-cu128-cp312", ""),
    (facts("1.0+cu.12.8.torch.2.11"), "2.11.0-cu130-cp312", "13.0: the version 1.0+cu.12.8.torch.2.11 names cu128"),
    (facts("1.0+torch2160cu132"), "2.1.0-cu121-cp311", "torch 2.1: the version 1.0+torch2160cu132 names torch 2.16"),
    (facts("1.0+torch211"), "2.12.0-cu130-cp312", "torch 2.12: the version 1.0+torch211 names torch 2.1 or 2.11"),
    (facts("1.0+torch251.cu124"), "2.5.1-cu124-cp312", ""),
    (facts("1.0+pt24cpu"), "2.4.1-cu121-cp312", f"CUDA 12.1: the version 1.0+pt24cpu {WITHOUT_CUDA}"),
    (FADED, "2.11.0-cu126-cp312", "CUDA 12.6: the libraries need the runtime of CUDA 13"),
    (facts(needed=("libcublas.so.12", "libcudart.so.13")), "2.11.0-cu126-cp312", ""),
    (facts(tag="cp311-cp311-linux_x86_64"), "2.11.0-cu130-cp312", "Python 3.12: the tag is cp311-cp311"),
    (facts(tag="cp313-cp313t-linux_x86_64"), "2.11.0-cu130-cp313t", ""),
    (replace(facts(), requires_python=">=3.12"), "2.11.0-cu130-cp311", "3.11: METADATA requires Python >=3.12"),
]


@pytest.mark.parametrize(("wheel", "cell", "reason"), CLAIMS)
def test_each_thing_that_a_wheel_says_counts(wheel: WheelFacts, cell: str, reason: str) -> None:
    found = why_not(wheel, f"torch{cell}")
    assert found.endswith(reason)
    assert bool(found) == bool(reason)


def test_functions_of_the_stable_abi_need_their_torch() -> None:
    wheel = wheel_facts(library(undefined=("torch_call_dispatcher",)), version="1.0", requires_dist=(), tag=ANY_PYTHON)
    assert why_not(wheel, "torch2.8.0-cu126-cp312").startswith("torch 2.8: the libraries call functions that torch has")
    assert why_not(wheel, "torch2.11.0-cu130-cp312") == ""


def test_the_newest_admitted_patch_of_each_series_is_claimed() -> None:
    wheel = facts("1.0", "torch>=2.6,<2.8,!=2.7.1", needed=("libcudart.so.12",))
    claimed = claimed_cells(wheel, Compat.load(), Platform.LINUX_X86_64)
    assert {str(cell.torch) for cell in claimed.cells} == {"2.6.0", "2.7.0"}
    assert {str(cell.cuda) for cell in claimed.cells} == {"12.4", "12.6", "12.8"}
    assert "torch 1.12 to 2.5 and 2.8 to 2.15: METADATA requires torch!=2.7.1,<2.8,>=2.6" in claimed.others
    assert "CUDA 11.8: the libraries need the runtime of CUDA 12" in claimed.others
    assert "Python 3.9 and 3.13t: the tag is cp310-abi3" in claimed.others
    windows = facts(tag="cp312-cp312-win_amd64")
    assert claimed_cells(windows, Compat.load(), Platform.LINUX_X86_64).cells == ()


@pytest.mark.parametrize(
    ("symbols", "tag", "abi"),
    [
        (("torch_call_dispatcher",), ANY_PYTHON, AbiClass.STABLE),
        (("torch_call_dispatcher",), "py3-none-linux_x86_64", AbiClass.STABLE),
        (("torch_call_dispatcher", "PyLong_FromLong"), "cp312-cp312-linux_x86_64", AbiClass.CPYTHON),
        (("torch_call_dispatcher", "_ZN2at6Tensor3fooEv"), ANY_PYTHON, AbiClass.ABI3),
        ((), ANY_PYTHON, AbiClass.ABI3),
        ((), "py3-none-linux_x86_64", AbiClass.CPYTHON),
    ],
)
def test_the_class_follows_from_tags_and_symbols(symbols: tuple[str, ...], tag: str, abi: AbiClass) -> None:
    assert abi_class(wheel_facts(library(undefined=symbols), version="1.0", tag=tag)) is abi


def test_a_torch_extension_links_or_requires_torch() -> None:
    needed = ("libtorch_cpu.so", "libc10.so", "libcudart.so.13", "libcudnn.so.9", "libnvjpeg.so.13", "libz.so.1")
    assert provided_by_torch(facts(needed=needed)) == {*needed[:4]}
    assert uses_torch(facts(needed=("libc10.so",)))
    assert uses_torch(facts("1.0", "torch>=2"))
    assert not uses_torch(facts("1.0", "torchdata", 'torch; extra == "gpu"', needed=("libc.so.6",)))


def test_a_version_that_names_a_cuda_promises_gpu_code() -> None:
    plain, named = facts("1.0"), facts("1.0+cu130")
    required = [foreign_claim(wheel, [], cuda_required=False).cuda_required for wheel in (plain, named)]
    assert required == [False, True]


@pytest.mark.parametrize("field", ["requires_dist", "requires_python", "version"])
def test_a_number_that_python_does_not_convert_is_no_error(field: str) -> None:
    """Python converts at most 4300 digits."""
    number = "1" * 5000
    plain = facts("1+cu130", "torch")
    changed = {
        "requires_dist": replace(plain, requires_dist=(f"torch=={number}",)),
        "requires_python": replace(plain, requires_python=f">={number}"),
        "version": replace(plain, version=f"1+cu130.{number}"),
    }
    cell = Cell.parse("torch2.11.0-cu130-cp312")
    CellClaims(changed[field]).why_not(cell)
    proof = check_metadata(changed[field], foreign_claim(changed[field], [cell]))
    assert proof.verdict is Verdict.FAILED


def test_the_version_of_the_driver_is_that_of_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "smi", lambda: [{"name": "H100", "driver_version": "580.95.05"}])
    assert driver.driver_version() == "580.95.05"
    monkeypatch.setattr(nvidia, "smi", list)
    assert driver.driver_version() == ""


def test_gpu_exists_when_the_driver_created_a_device_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvidia, "NODES", (tmp_path / "nvidiactl",))
    assert not driver.gpu_here()
    (tmp_path / "nvidiactl").touch()
    assert driver.gpu_here()


CELL = Cell.parse("torch2.11.0-cu130-cp312")
FAKE = Outcome("fake", "tiny::op", "plain", FAILED, "the fake kernel returns another shape")
ACCEPTS = Accept("fake", "upstream knows it", op="tiny::op")


def recipe(*entries: Accept) -> Recipe:
    return replace(make.recipe("tiny"), version="1.4", accepts=entries)


def proofs(*outcomes: Outcome) -> list[Proof]:
    return CellProofs("ab", CELL).of_gate(answer(*outcomes))


def of(check: Check, made: list[Proof]) -> Proof:
    [found] = [proof for proof in made if proof.check is check]
    return found


def test_an_accepted_failure_is_neither_failed_nor_passed_and_keeps_its_finding() -> None:
    raw = proofs(FAKE)
    made = apply_accepts(raw, recipe(ACCEPTS))
    found = of(Check.FAKE, made)
    assert (found.verdict, found.accepted) == (Verdict.ACCEPTED, "upstream knows it")
    assert found.reason == "tiny::op (plain): the fake kernel returns another shape"
    assert found.evidence["outcomes"][0]["accepted"] == "upstream knows it"
    assert [proof for proof in made if proof is not found] == [p for p in raw if p.check is not Check.FAKE]


def test_a_stored_proof_follows_the_recipe_of_today() -> None:
    raw = of(Check.FAKE, proofs(FAKE))
    [accepted] = apply_accepts([raw], recipe(ACCEPTS))
    stored = Proof.from_json(json.loads(json.dumps(accepted.to_json())))
    assert apply_accepts([stored], recipe(ACCEPTS)) == [accepted]
    assert apply_accepts([stored], recipe()) == [raw]


def test_a_second_failure_of_the_check_still_fails() -> None:
    [found] = apply_accepts([of(Check.FAKE, proofs(FAKE, replace(FAKE, op="tiny::more")))], recipe(ACCEPTS))
    assert found.verdict is Verdict.FAILED
    assert found.reason.startswith("tiny::more (plain): ")


def test_a_check_of_the_file_can_be_accepted() -> None:
    raw = Proof("ab", None, Check.TAGS, Verdict.FAILED, "uses GLIBC_2.99", {"symbols": ["x"]})
    [found] = apply_accepts([raw], recipe(Accept("tags", "only for our machines")))
    assert (found.verdict, found.reason, found.accepted) == (Verdict.ACCEPTED, raw.reason, "only for our machines")
    assert apply_accepts([found], recipe()) == [raw]
    assert apply_accepts([raw], recipe(Accept("tags", "in a cell", cell="torch2*"))) == [raw]


def test_a_remark_can_be_accepted() -> None:
    remark = Outcome("loaded", "", "tiny/_video.so", NOT_RUN, "no import loads it", remark=True)
    good = Outcome("loaded", "", "tiny/_C.so", PASSED)
    raw = of(Check.LOADED, proofs(good, remark))
    assert (raw.remark, raw.reason) == (True, "tiny/_video.so: no import loads it")
    [found] = apply_accepts([raw], recipe(Accept("loaded", "loaded on demand", op="tiny/_video.so")))
    assert (found.verdict, found.remark, found.accepted) == (Verdict.ACCEPTED, False, "loaded on demand")
    assert apply_accepts([found], recipe()) == [raw]


def test_accepts_are_no_input_of_a_run() -> None:
    assert gate_basis(recipe()) == gate_basis(recipe(ACCEPTS))


PROOFS = CellProofs("ab", Cell.parse("torch2.11.0-cu130-cp312"))


def by_check(*outcomes: Outcome) -> dict[Check, Proof]:
    made = PROOFS.of_gate(Answer(WHERE, ["a::f", "a::g"], list(outcomes)))
    return {proof.check: proof for proof in made}


def test_every_check_has_one_proof_even_without_an_outcome() -> None:
    made = by_check(Outcome("values", "a::f", "plain", PASSED))
    assert tuple(made) == GATE_CHECKS
    assert made[Check.VALUES].verdict is Verdict.PASSED
    assert made[Check.FAKE].verdict is Verdict.NOT_RUN
    assert made[Check.FAKE].reason == "this check applies to no op and no case"


@pytest.mark.parametrize(
    ("check", "of", "figure"),
    [
        ("values", [("a::f", "1"), ("a::f", "2"), ("a::g", "1")], "3 cases of 2 ops"),
        ("dispatch", [("a::f", ""), ("a::g", "")], "2 ops"),
        ("loaded", [("", "toy/_C.so"), ("", "toy/_D.so")], "toy/_C.so, toy/_D.so"),
    ],
)
def test_a_passed_check_counts_what_it_ran_on(check: str, of: list[tuple[str, str]], figure: str) -> None:
    made = by_check(*(Outcome(check, op, case, PASSED) for op, case in of))
    assert made[Check(check)].reason == figure


FIRST, EMPTY, NO_FAKE = ("a::f", "plain"), ("a::f", "empty"), "upstream registers no fake kernel"


@pytest.mark.parametrize(
    ("outcomes", "verdict", "reason"),
    [
        pytest.param(
            [(*FIRST, PASSED), ("a::g", "two levels", FAILED, "3 is not 2"), ("a::h", "", NOT_RUN, "not claimed")],
            Verdict.FAILED,
            "a::g (two levels): 3 is not 2",
            id="a failure names op, case and reason",
        ),
        pytest.param(
            [(f"a::f{n}", "", FAILED, "wrong") for n in range(5)],
            Verdict.FAILED,
            "a::f0: wrong; a::f1: wrong; a::f2: wrong; and 2 more",
            id="failures after the third are counted",
        ),
        pytest.param(
            [(*FIRST, PASSED), (*EMPTY, PASSED), ("a::g", "plain", NOT_RUN, NO_FAKE)],
            Verdict.NOT_RUN,
            f"2 of 3 passed; a::g: {NO_FAKE}",
            id="not run for one op is not run",
        ),
        pytest.param([("a::g", "", NOT_RUN, NO_FAKE)], Verdict.NOT_RUN, NO_FAKE, id="only the reason if nothing ran"),
    ],
)
def test_the_verdict_and_the_reason_of_a_check(outcomes: list[tuple[str, ...]], verdict: Verdict, reason: str) -> None:
    made = by_check(*(Outcome("fake", *one) for one in outcomes))[Check.FAKE]  # type: ignore[arg-type]
    assert (made.verdict, made.reason) == (verdict, reason)


def test_answer_is_settled_and_failed_gate_is_not() -> None:
    assert all(proof.evidence["settled"] for proof in PROOFS.of_gate(answer()))
    assert not any(proof.evidence for proof in PROOFS.not_run("no network"))
    assert all(proof.evidence["settled"] for proof in PROOFS.not_run("no import", settled=True))


def test_evidence_of_a_failure_is_kept() -> None:
    made = by_check(Outcome("memory", "a::f", "plain", FAILED, "wrote past the end", evidence={"stack": "f.cpp:3"}))
    kept = Proof.from_json(json.loads(json.dumps(made[Check.MEMORY].to_json())))
    assert kept.evidence["outcomes"][0]["evidence"] == {"stack": "f.cpp:3"}
    assert kept.evidence["where"]["torch"] == "2.11.0"


@pytest.fixture
def ops_recipe(tmp_path: Path) -> Recipe:
    return replace(make.recipe("ops"), folder=tmp_path)


def test_basis_changes_with_the_cases_and_their_imports(ops_recipe: Recipe) -> None:
    bases = [gate_basis(ops_recipe)]
    (ops_recipe.folder / "cases.py").write_text("CASES = []\n")
    bases.append(gate_basis(ops_recipe))
    (ops_recipe.folder / "references").mkdir()
    (ops_recipe.folder / "references" / "ops.py").write_text("x = 1\n")
    bases.append(gate_basis(ops_recipe))
    (ops_recipe.folder / "references" / "ops.py").write_text("x = 2\n")
    bases.append(gate_basis(ops_recipe))
    (ops_recipe.folder / "references" / "__pycache__").mkdir()
    (ops_recipe.folder / "references" / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert gate_basis(ops_recipe) == bases[-1]
    (ops_recipe.folder / "references" / "expected.json").write_text("[1]")
    bases.append(gate_basis(ops_recipe))
    bases.append(gate_basis(replace(ops_recipe, companions=("numpy",))))
    assert len({json.dumps(one) for one in bases}) == len(bases)


def test_missing_answer_is_a_sentence(ops_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **_: Any) -> int:
        folder = Path(argv[argv.index("--answer") - 1])
        assert argv[argv.index("--write") + 1] == str(folder), "the one folder that it can change"
        assert (folder / "spec.json").is_file()
        return -9

    monkeypatch.setattr(op_gate, "run", run)
    reason = run_gate(Path("python"), ops_recipe, tmp_path / "gate", jobs=2, log=tmp_path / "log", owner="job")
    assert isinstance(reason, str)
    assert "ended by SIGKILL and wrote no results" in reason
    assert str(tmp_path / "log") in reason


def script(folder: Path, text: str) -> Path:
    """A program that takes the place of the cell's Python."""
    path, code = folder / "python", folder / "python.py"
    code.write_text(f"import os, sys\n{text}")
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{code}" "$@"\n')  # a #! line takes no path with a space
    path.chmod(0o755)
    return path


def test_an_answer_of_any_size_is_not_read(tmp_path: Path) -> None:
    python = script(tmp_path, "open(sys.argv[sys.argv.index('--answer') + 1], 'wb').truncate(3 << 30)")
    said = run_gate(python, make.recipe(), tmp_path / "gate", jobs=1, log=tmp_path / "log", owner="large")
    assert said == f"the op gate wrote results of more than 32.0 MiB; the full output is in {tmp_path / 'log'}"


def test_the_gate_gets_no_secret_and_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:hunter2@index.example/simple")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    python = script(tmp_path, "import time; print(os.environ, flush=True); time.sleep(600)")
    for seconds in (1, 10, 120):  # a slow machine starts a Python in more than a second
        monkeypatch.setattr(op_gate, "gate_seconds", lambda _, limit=seconds: limit)
        run_gate(
            python, make.recipe(), tmp_path / f"gate{seconds}", jobs=1, log=tmp_path / "log", owner=f"secret {tmp_path}"
        )
        log = (tmp_path / "log").read_text()
        assert log.endswith(f"buildfarm ended the program: it did not finish within {seconds} s\n")
        if "PATH" in log:
            break
    assert "OMP_NUM_THREADS" in log
    assert "hunter2" not in log


def test_a_gate_without_an_answer_fails_and_is_tried_again() -> None:
    given = PROOFS.of_gate("the op gate exited with status -9")
    assert [proof.check for proof in given] == list(GATE_CHECKS)
    for proof in given:
        assert proof.verdict is (Verdict.NOT_RUN if proof.check.on_gpu else Verdict.FAILED)
        assert proof.evidence["limit"] == "time"


def test_time_limit_follows_the_limit_of_a_case() -> None:
    short, long = (op_gate.gate_seconds(replace(make.recipe(), seconds_per_case=one)) for one in (60, 120))
    assert long - short == 240 * 60


def test_interrupt_kills_the_gate_whose_task_directories_are_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaped: list[str] = []
    directories: list[str] = []

    def interrupted(*_: object, env: dict[str, str], **__: object) -> int:
        directories.append(env["TMPDIR"])
        raise KeyboardInterrupt

    monkeypatch.setattr(op_gate, "run", interrupted)
    monkeypatch.setattr(op_gate, "kill_orphans", reaped.append)
    with pytest.raises(KeyboardInterrupt):
        run_gate(Path("python"), make.recipe(), tmp_path / "gate", jobs=1, log=tmp_path / "log", owner="mine")
    assert reaped == ["mine"]
    assert directories == [str(tmp_path / "gate" / "tmp")]


def test_one_crash_is_one_sentence_and_one_line() -> None:
    crash = "dies with SIGSEGV (a segmentation fault) in f of _C.so"
    outcomes = [
        Outcome(check, "a::f", case, FAILED, f"{crash} (step: {check}, {case})")
        for check in ("values", "gradients", "memory")
        for case in ("plain", "empty")
    ]
    made = by_check(*outcomes)
    assert made[Check.VALUES].reason == f"a::f (plain, empty): {crash} (step: values, plain)"
    assert failed_lines(list(made.values())) == [
        f"values, gradients, memory: a::f (plain, empty): {crash} (step: values, plain)"
    ]
