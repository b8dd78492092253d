"""The text of a drafted cases.py, and what `buildfarm cases` prints."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from builder.cli.options import ExecutorName
from builder.commands import cases
from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.cases import CasesOptions, run_cases
from builder.commands.cases_text import cases_text, missing_text, summary_text
from builder.commands.smoke_targets import SmokeTarget
from builder.errors import Code, MissingToolError, NothingSelectedError, UsageError
from builder.gate.draft.result import CALLED, CUDA_ONLY, NOT_CALLED, Argument, Drafts, OpDraft
from builder.matrix.axes import Cell
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes, read_plan
from builder.result import CasesResult
from builder.store import Store, StoredBuild, work_name
from tests.conftest import coded
from tests.refused import refused
from tests.unit.loopback import pure_wheel
from tests.unit.wheels.make_record import build_record

ADD = OpDraft(
    "toy::add",
    CALLED,
    signature="toy::add(Tensor x, *, float scale) -> Tensor",
    arguments=[Argument("x", "make.randn(5, 3, grad=True)"), Argument("scale", "0.5", keyword=True)],
    results=["float32 (5, 3)"],
    untraced='no fake kernel: it raises "NotImplementedError"',
)
ON_CUDA = OpDraft("toy::sort", CUDA_ONLY, "the op has no CPU kernel: sort", arguments=[Argument("x", "make.randn(4)")])
UNKNOWN = OpDraft("toy::decode", NOT_CALLED, "none of 9 calls succeeded; one of the last errors: 'no \"PNG\" data'")
FUNCTION = OpDraft("toy.decode", NOT_CALLED, "none of 9 calls succeeded", required=False)
DRAFTS = Drafts({}, public=["toy"], drafts=[ADD, ON_CUDA, UNKNOWN, FUNCTION])


def assigned(text: str) -> dict[str, ast.expr]:
    targets = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): node.value for node in targets}


def drafted(*drafts: OpDraft) -> tuple[str, list[str]]:
    """The text of a whole cases.py, which is valid code, and the calls of Case in it."""
    text = cases_text("toy", "torch2.11.0-cu130-cp312", Drafts({}, public=["toy"], drafts=drafts))
    calls = [ast.unparse(one) for one in ast.walk(assigned(text)["CASES"]) if isinstance(one, ast.Call)]
    return text, [call for call in calls if call.startswith("Case(")]


def test_the_draft_is_valid_code_with_a_case_for_each_op() -> None:
    text, cases = drafted(*DRAFTS.drafts)
    values = assigned(text)
    assert any("op='toy::add'" in call and "kwargs={'scale': 0.5}" in call for call in cases)
    assert any("op='toy::sort'" in call and "devices=['cuda']" in call for call in cases)
    assert ast.literal_eval(values["PUBLIC"]) == ["toy"]
    # A function that no case must cover is left out: the gate does not look for it.
    assert ast.literal_eval(values["NOT_CLAIMED"]) == {"toy::decode": UNKNOWN.reason}
    assert text.count("GAP: the same result") == 2


def test_an_op_that_returns_nothing_has_a_gap_for_what_it_writes() -> None:
    text, _ = drafted(replace(ADD, written=["out", "count"], results=[]))
    assert "reference=None,  # GAP: the new values of out, count in plain PyTorch" in text
    assert "the function returns the new values of the tensors that the op writes to" in " ".join(text.split())
    assert "the function writes to these arguments too" in " ".join(text.split())


def test_an_op_that_accepts_an_empty_tensor_has_a_case_with_one() -> None:
    accepts = replace(ADD, empty=[Argument("x", "make.randn(0, 3)"), Argument("scale", "0.5", keyword=True)])
    refuses = replace(ADD, op="toy::sub", empty_error="RuntimeError: x has no elements")
    text, [add, empty, sub] = drafted(accepts, refuses)
    assert "edge" not in add + sub
    assert "name='empty'" in empty
    assert "inputs=lambda make: (make.randn(0, 3),)" in empty
    assert "edge='empty'" in empty
    assert "# no case with an empty tensor: with one, the op raises RuntimeError: x has no elements" in text


def test_a_check_that_failed_in_a_trial_is_not_claimed_and_is_named() -> None:
    failing = replace(
        ADD,
        untraced="",
        unclaimed={"opcheck": 'it raises "RuntimeError"', "compile": "static: no"},
        empty=[Argument("x", "make.randn(0, 3)")],
        empty_unclaimed={"opcheck": "for no rows"},
    )
    _, [plain, empty] = drafted(failing)
    assert """not_claimed={'opcheck': 'it raises "RuntimeError"', 'compile': 'static: no'}""" in plain
    assert "not_claimed={'opcheck': 'for no rows'}" in empty
    text = summary(failing)
    assert 'not claimed: toy::add: opcheck fails: it raises "RuntimeError"\n' in text
    assert "not claimed: toy::add: compile fails: static: no\n" in text


def test_the_case_of_a_class_lists_its_dtypes() -> None:
    layer = replace(ADD, op="toy.Layer('sum', 4)", dtypes=["float64"], empty=[Argument("x", "make.randn(5, 3)")])
    _, [typical, empty] = drafted(layer)
    assert "op=\"toy.Layer('sum', 4)\"" in typical
    assert "dtypes=(torch.float32, torch.float64)" in typical
    assert "dtypes" not in empty, "with an empty tensor the op was called in float32 only"


def test_an_op_without_a_fake_kernel_is_named_with_the_cure() -> None:
    text = summary(ADD, replace(ADD, op="toy::sub"))
    assert (
        "no fake kernel: toy::add, toy::sub: the cases do not claim opcheck, fake, devices, export and compile" in text
    )
    assert 'torch.library.register_fake("toy::add")' in text
    assert "fake kernel" not in summary(ON_CUDA, UNKNOWN)


def test_a_fake_kernel_that_was_learned_is_printed() -> None:
    code = '@torch.library.register_fake("toy::add")\ndef _fake_add(x):\n    return x.new_empty(x.shape)\n'
    text = summary(replace(ADD, fake=code), replace(ADD, op="toy::sub"))
    assert "no fake kernel: toy::sub: the cases do not claim" in text
    assert "no fake kernel: toy::add: the cases do not claim" in text
    assert (
        '\n  @torch.library.register_fake("toy::add")\n  def _fake_add(x):\n      return x.new_empty(x.shape)\n' in text
    )


def test_long_reasons_are_indented_as_a_formatter_does_it() -> None:
    reason = "no fake kernel: " + "word " * 30
    traced = replace(ADD, untraced="", unclaimed={"opcheck": reason})
    text, _ = drafted(replace(ADD, untraced=reason), traced)
    assert '\n        not_claimed=untraced(\n            "no fake kernel: word' in text
    assert '"\n        ),\n' in text
    assert '\n            "opcheck": (\n                "no fake kernel: word' in text
    assert '"\n            ),\n' in text
    assert "untraced((" not in text


def test_without_a_successful_call_there_is_no_gap_to_replace() -> None:
    text, _ = drafted(UNKNOWN)
    assert "GAP" not in text
    assert "CASES = []" in text
    assert "NOT_CLAIMED" in text
    said = summary(UNKNOWN)
    assert "GAP" not in said
    assert "next: no op could be called: write a Case for each op of NOT_CLAIMED" in said


def summary(*drafts: OpDraft, file: str | None = "cases.py", cases: str = "cases.py") -> str:
    """What `buildfarm cases` prints of these drafts."""
    cell = Cell.parse("torch2.11.0-cu130-cp312")
    made = Drafts({}, drafts=drafts)
    return summary_text(CasesResult("toy", "toy.whl", cell, made, Path(file) if file else None, "", Path(cases)))


def test_what_existing_cases_lack_is_valid_code_too() -> None:
    text = missing_text(DRAFTS)
    ast.parse(text)
    assert "CASES += [" in text
    assert "NOT_CLAIMED |= {" in text


def test_the_summary_counts_calls_and_gives_every_reason() -> None:
    text = summary(*DRAFTS.drafts)
    assert "toy: called successfully in torch2.11.0-cu130-cp312: 1 of 3 ops, 0 of 1 other callable" in text
    assert "not called (CUDA only): toy::sort: the op has no CPU kernel: sort" in text
    assert "wrote cases.py" in text
    assert "replace each GAP in this file by a reference, then run" in text
    moved = summary(*DRAFTS.drafts, file="draft.py", cases="toy/cases.py")
    assert "a reference, move the text of this file to toy/cases.py, then run your `buildfarm build` command" in moved
    assert "toy: no op, and no function or class with a tensor argument" in summary(file=None)


def a_project(folder: Path) -> Path:
    """A matrix with one recipe; returns the file."""
    folder.mkdir(exist_ok=True)
    matrix = folder / "matrix.yaml"
    matrix.write_text("torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [toy]\n")
    (folder / "toy").mkdir()
    recipe = "name: toy\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [toy]\n"
    (folder / "toy" / "extension.yaml").write_text(recipe)
    return matrix


@pytest.mark.parametrize(
    ("wanted", "glibc", "expected"),
    [("auto", "2_17", "local"), ("auto", "2_99", "docker"), ("local", "2_99", "local"), ("docker", "2_17", "docker")],
)
def test_a_wheel_for_a_newer_glibc_is_drafted_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, glibc: str, expected: str
) -> None:
    asked = []

    def no_cells(executor: str, **_: object) -> None:
        asked.append(executor)
        raise MissingToolError("no cells in this test", Code.TOOLKIT_MISSING)

    monkeypatch.setattr(cases, "cell_environments", no_cells)
    matrix = a_project(tmp_path)
    pure_wheel(tmp_path / "dist", "toy", "1.0", requires=["torch==2.11.*"], tag=f"cp312-cp312-manylinux_{glibc}_x86_64")
    store, dist = tmp_path / "store", tmp_path / "dist"
    options = CasesOptions(matrix=matrix, store=store, dist=dist, executor=ExecutorName(wanted))
    with refused(Code.TOOLKIT_MISSING):
        list(run_cases(options))
    assert asked == [expected]


def test_a_draft_needs_a_wheel_and_overwrites_nothing(tmp_path: Path) -> None:
    matrix, name = a_project(tmp_path), "toy"
    options = CasesOptions(matrix=matrix, ext=[name], store=tmp_path / "store", dist=tmp_path / "dist")
    with refused(Code.NO_WHEEL):
        list(run_cases(options))
    kept = tmp_path / "kept.py"
    kept.write_text("mine")
    with pytest.raises(UsageError, check=coded(Code.ALREADY_EXISTS)):
        list(run_cases(CasesOptions(matrix=matrix, ext=[name], out=kept, store=tmp_path / "store")))
    assert kept.read_text() == "mine"


def built(store: Store, matrix: Path, digest: str) -> StoredBuild:
    """A wheel in the store that a build from the folder of the matrix made."""
    tag = "cp312-cp312-manylinux_2_17_x86_64"
    wheel = pure_wheel(matrix.parent / digest, "toy", "1.0", {"toy.py": digest}, requires=["torch==2.11.*"], tag=tag)
    with store.work(work_name(digest)):
        stored = store.add(digest, wheel, build_record())
    [recipe] = load_recipes(load_matrix(matrix))
    [build] = read_plan(matrix, Selection())[2].builds
    FolderBuilds(store).remember(build, recipe, digest)
    return stored


def drafted_wheel(monkeypatch: pytest.MonkeyPatch, store: Store, folder: Path) -> Path:
    """The wheel for which `cases` drafts in this folder."""
    chosen: list[Path] = []

    def note(target: SmokeTarget, *_: object) -> None:
        chosen.append(target.wheel)
        raise MissingToolError("no cells in this test", Code.NO_CELL_HERE)

    monkeypatch.setattr(cases, "_drafted", note)
    options = CasesOptions(matrix=folder / "matrix.yaml", store=store.root, dist=folder / "dist")
    with refused(Code.NO_CELL_HERE):
        list(run_cases(options))
    return chosen[0]


def test_the_wheel_is_the_last_one_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders that share a store may have an extension of the same name."""
    store = Store(tmp_path / "store")
    mine, other = a_project(tmp_path / "mine"), a_project(tmp_path / "other")
    first = built(store, mine, "a" * 64)
    built(store, other, "b" * 64)
    assert drafted_wheel(monkeypatch, store, mine.parent) == first.wheel
    second = built(store, mine, "c" * 64)
    assert drafted_wheel(monkeypatch, store, mine.parent) == second.wheel


def test_a_folder_without_a_wheel_gets_none_of_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    mine, other = a_project(tmp_path / "mine"), a_project(tmp_path / "other")
    built(store, other, "b" * 64)
    options = CasesOptions(matrix=mine, store=store.root, dist=tmp_path / "mine" / "dist")
    with pytest.raises(NothingSelectedError, match="the extension has no wheel yet"):
        list(run_cases(options))
    earlier = built(store, mine, "a" * 64)
    assert drafted_wheel(monkeypatch, store, mine.parent) == earlier.wheel


def test_only_the_folder_that_published_a_wheel_is_warned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "store")
    warnings = []
    for name in ("mine", "other"):
        matrix = a_project(tmp_path / name)
        [recipe] = load_recipes(load_matrix(matrix))
        [build] = read_plan(matrix, Selection())[2].builds
        if name == "mine":
            wheel = tmp_path / "toy-1.0+cu130.torch2.11-cp312-cp312-linux_x86_64.whl"
            FolderBuilds(store).remember_published(wheel, "a" * 64, [recipe])
        FolderBuilds(store).tell_before_compile(build, recipe, "b" * 64, {})
        warnings.append(" ".join(capsys.readouterr().err.split()))
    assert ["toy 1.0 is already published" in warning for warning in warnings] == [True, False]
