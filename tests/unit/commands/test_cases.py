"""The text of a drafted cases.py, and what `buildfarm cases` prints."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from builder.commands import cases
from builder.commands.building.folder_builds import remember
from builder.commands.cases import CasesOptions, CasesResult, cases_text, run_cases, summary_text
from builder.commands.targets import SmokeTarget
from builder.errors import Code, MissingToolError, NothingSelectedError
from builder.gate.draft.result import CALLED, CUDA_ONLY, NOT_CALLED, Drafts, OpDraft
from builder.matrix.axes import Cell
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes, read_plan
from builder.proofs.cells import op_gate
from builder.store import Store, StoredBuild, work_name
from tests.refused import refused
from tests.unit.loopback import pure_wheel
from tests.unit.wheels.make_record import build_record

ADD = OpDraft(
    "toy::add",
    CALLED,
    signature="toy::add(Tensor x, *, float scale) -> Tensor",
    arguments=["make.randn(5, 3, grad=True)"],
    kwargs={"scale": "0.5"},
    results=["float32 (5, 3)"],
    untraced='no fake kernel: it raises "NotImplementedError"',
)
SUB = replace(ADD, op="toy::sub")
ON_CUDA = OpDraft("toy::sort", CUDA_ONLY, "the op has no CPU kernel: sort", arguments=["make.randn(4)"])
UNKNOWN = OpDraft("toy::decode", NOT_CALLED, "none of 9 calls succeeded; one of the last errors: 'no \"PNG\" data'")
FUNCTION = OpDraft("toy.decode", NOT_CALLED, "none of 9 calls succeeded", required=False)
ALL = (ADD, ON_CUDA, UNKNOWN, FUNCTION)
LONG = "no fake kernel: " + "word " * 30
FAKE = '@torch.library.register_fake("toy::add")\ndef _fake_add(x):\n    return x.new_empty(x.shape)\n'


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        (ADD, ["op='toy::add'", "kwargs={'scale': 0.5}", "GAP: the same result"]),
        (ON_CUDA, ["op='toy::sort'", "devices=['cuda']", "Ops without a CPU kernel were not called: check their"]),
        (
            replace(ADD, written=["out", "count"], results=[]),
            ["reference=None,  # GAP: the new values of out, count in plain PyTorch"],
        ),
        (replace(ADD, contiguous_only=True, dtypes=["float64"]), ["contiguous_only=True", "torch.float64)"]),
        (replace(ADD, op="toy.Layer('sum', 4)"), ["op=\"toy.Layer('sum', 4)\""]),
        (replace(ADD, untraced=LONG), ['\n        not_claimed=untraced("no fake kernel: word', ' …"),\n']),
        (UNKNOWN, ["CASES = []", "NOT_CLAIMED = {", "Write a Case for each op of NOT_CLAIMED"]),
    ],
)  # fmt: skip
def test_the_draft_is_valid_code_with_a_case_for_each_op(draft: OpDraft, says: list[str]) -> None:
    text = cases_text(Drafts({}, drafts=[draft]), name="toy", cell="torch2.11.0-cu130-cp312")
    both = text + ast.unparse(ast.parse(text))
    assert [one for one in says if one not in both] == []
    assert ("GAP" in text) == (draft is not UNKNOWN)


def test_what_no_case_must_cover_is_left_out() -> None:
    text = cases_text(Drafts({}, drafts=ALL), name="toy", cell="a cell")
    values = {ast.unparse(one.targets[0]): one.value for one in ast.parse(text).body if isinstance(one, ast.Assign)}
    assert ast.literal_eval(values["NOT_CLAIMED"]) == {"toy::decode": UNKNOWN.reason}
    lacking = cases_text(Drafts({}, drafts=ALL))
    ast.parse(lacking)
    assert "CASES += [" in lacking
    assert "NOT_CLAIMED |= {" in lacking


@pytest.mark.parametrize(
    ("drafts", "says"),
    [
        (
            ALL,
            ["toy: called successfully in torch2.11.0-cu130-cp312: 1 of 3 ops, 0 of 1 other callable",
             "not called (CUDA only): toy::sort: the op has no CPU kernel: sort", "wrote cases.py",
             "replace each GAP in this file by a reference, then run your `buildfarm build` command"],
        ),
        ([], ["toy: no op, and no function or class with a tensor argument"]),
        ([UNKNOWN], ["next: no op could be called: write a Case for each op of NOT_CLAIMED"]),
        (
            [ADD, SUB],
            ["torch.compile cannot use toy::add, toy::sub: no fake kernel",
             "so the cases do not claim opcheck, fake, devices, export and compile",
             'torch.library.register_fake("toy::add")'],
        ),
        (
            [replace(ADD, fake=FAKE), SUB],
            ["torch.compile cannot use toy::sub: no fake kernel", "torch.compile cannot use toy::add: no fake kernel",
             f"\n{FAKE}"],
        ),
    ],
)  # fmt: skip
def test_the_summary_counts_calls_and_gives_every_reason_and_cure(drafts: list[OpDraft], says: list[str]) -> None:
    cell = Cell.parse("torch2.11.0-cu130-cp312")
    text = summary_text(CasesResult("toy", cell, Drafts({}, drafts=drafts), Path("cases.py")))
    assert [one for one in says if one not in text] == []


def test_a_call_of_a_draft_cannot_write_outside_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(op_gate, "run", lambda _, **options: given.update(options["env"]) or 0)
    op_gate.run_packed(Path("python"), tmp_path, log=tmp_path / "log", owner="", draft=True)
    assert (given["MALLOC_CHECK_"], given["HOME"]) == ("3", str(tmp_path / "tmp"))


def a_project(folder: Path) -> Path:
    """A matrix with one recipe; returns the file."""
    folder.mkdir(exist_ok=True)
    matrix = folder / "matrix.yaml"
    matrix.write_text("torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [toy]\n")
    (folder / "toy").mkdir()
    recipe = "name: toy\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [toy]\n"
    (folder / "toy" / "extension.yaml").write_text(recipe)
    return matrix


def test_a_wheel_for_a_newer_glibc_is_for_another_machine(store: Store, tmp_path: Path) -> None:
    matrix = a_project(tmp_path)
    built(store, matrix, "a" * 64, glibc="2_99")
    with refused(Code.PLATFORM_UNSUPPORTED):
        list(run_cases(CasesOptions(matrix=matrix, store=store.root)))


def test_a_new_draft_is_written_and_an_existing_file_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = a_project(tmp_path)
    built(store, matrix, "a" * 64)
    monkeypatch.setattr(cases, "_drafted", lambda *_: (Cell.parse("torch2.11.0-cu130-cp312"), Drafts({}, drafts=[ADD])))
    said = []
    for _ in range(2):
        [result] = run_cases(CasesOptions(matrix=matrix, store=store.root))
        said.append(summary_text(result))
    file = tmp_path / "toy" / "cases.py"
    assert file.is_file()
    assert f"wrote {file}\nnext: replace each GAP" in said[0]
    assert "cases.py was not changed; add these lines" in said[1]
    assert "CASES += [" in said[1]


def built(store: Store, matrix: Path, digest: str, glibc: str = "2_17") -> StoredBuild:
    """A wheel in the store that a build from the folder of the matrix made."""
    tag = f"cp312-cp312-manylinux_{glibc}_x86_64"
    wheel = pure_wheel(matrix.parent / digest, "toy", "1.0", {"toy.py": digest}, requires=["torch==2.11.*"], tag=tag)
    with store.work(work_name(digest)):
        stored = store.add(digest, wheel, build_record())
    [recipe] = load_recipes(load_matrix(matrix))
    [build] = read_plan(matrix, Selection())[2].builds
    remember(store, build, recipe, digest)
    return stored


def drafted_wheel(monkeypatch: pytest.MonkeyPatch, store: Store, folder: Path) -> Path:
    """The wheel for which `cases` drafts in this folder."""
    chosen: list[Path] = []

    def note(target: SmokeTarget, *_: object) -> None:
        chosen.append(target.wheel)
        raise MissingToolError("no cells in this test", Code.NO_CELL_HERE)

    monkeypatch.setattr(cases, "_drafted", note)
    with refused(Code.NO_CELL_HERE):
        list(run_cases(CasesOptions(matrix=folder / "matrix.yaml", store=store.root)))
    return chosen[0]


def test_the_wheel_is_the_last_one_of_this_folder(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders that share a store may have an extension of the same name."""
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
    with pytest.raises(NothingSelectedError, match="the extension has no wheel yet"):
        list(run_cases(CasesOptions(matrix=mine, store=store.root)))
    earlier = built(store, mine, "a" * 64)
    assert drafted_wheel(monkeypatch, store, mine.parent) == earlier.wheel
