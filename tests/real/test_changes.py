"""A second run after a change makes the affected builds and proofs again and removes refused wheels from dist/."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.commands.building.build import run_build
from builder.commands.folders import open_store
from builder.errors import Exit
from builder.log import console
from builder.proof import Check, Verdict
from builder.publish.results import BuildResult
from tests.fixtures.small_project import SmallProject, small_project
from tests.unit.canned_gate import can_gate
from tests.unit.loopback import pure_wheel

pytestmark = pytest.mark.usefixtures("headers")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallProject]:
    root = tmp_path_factory.mktemp("changing")
    with pytest.MonkeyPatch.context() as monkeypatch, small_project(root, monkeypatch) as made:
        monkeypatch.setattr(console, "quiet", True)
        made.recipe("tiny")
        made.matrix("tiny")
        yield made


@pytest.fixture(autouse=True)
def restored(project: SmallProject) -> Iterator[None]:
    """Each test starts with the correct recipe, built and published, and restores it."""
    recipe = project.root / "tiny" / "extension.yaml"
    text = recipe.read_text()
    once(project)
    yield
    recipe.write_text(text)


def once(project: SmallProject) -> BuildResult:
    """Run the only build once."""
    (result,) = run_build(project.options())[1]
    return result


def edit(project: SmallProject, old: str, new: str) -> None:
    recipe = project.root / "tiny" / "extension.yaml"
    assert old in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(old, new))


def wheels(project: SmallProject) -> list[str]:
    return sorted(path.name for path in (project.root / "dist").glob("*.whl*"))


def failed(result: BuildResult) -> set[Check]:
    return {proof.check for proof in result.proofs if proof.verdict is Verdict.FAILED}


def test_a_corrected_recipe_is_proven_again(project: SmallProject) -> None:
    edit(project, "imports: [tiny]", "imports: [aaaa]")
    assert failed(once(project)) == {Check.IMPORT}
    edit(project, "imports: [aaaa]", "imports: [tiny]")
    mended = once(project)
    assert mended.reused
    assert failed(mended) == set()


def test_a_stricter_recipe_does_not_reuse_verdicts(project: SmallProject) -> None:
    edit(project, "cuda: optional", "cuda: required")
    result = once(project)
    assert {Check.PAYLOAD, Check.DEVICE_CODE} <= failed(result)
    assert result.exit is Exit.FAILED


def test_a_wheel_with_a_different_platform_tag_is_replaced(project: SmallProject) -> None:
    (wheel,) = (project.root / "dist").glob("*.whl")
    stale = wheel.with_name(wheel.name.rpartition("-")[0] + "-manylinux_2_99_x86_64.whl")
    stale.write_bytes(wheel.read_bytes())
    once(project)
    assert not stale.exists()
    assert wheel.exists()


def test_a_wrong_abi3_tag_is_refused_whatever_the_recipe_claims(project: SmallProject) -> None:
    backend = project.root / "tiny" / "src" / "backend.py"
    text = backend.read_text()
    source = project.root / "tiny" / "src" / "tiny" / "_C.c"
    program = source.read_text()
    try:
        assert "cp{sys.version_info[0]}{sys.version_info[1]}" in text
        backend.write_text(text.replace("{tag}-{tag}", "cp310-abi3"))
        source.write_text(program.replace("PyModule_Create(", "_PyLong_Sign(Py_None), PyModule_Create("))
        result = once(project)
    finally:
        backend.write_text(text)
        source.write_text(program)
    assert result.error is None, result.error
    assert Check.ABI3 in failed(result)
    assert not [name for name in wheels(project) if "abi3" in name]


@pytest.mark.parametrize("text", ["", "[1]", '[{"wheel": "x"}]', "null"])
def test_unreadable_records_are_made_again(project: SmallProject, text: str) -> None:
    store = project.store
    for record in (*store.glob("proofs/*.json"), *store.glob("builds/*/facts-*.json"), *store.glob("envs/*.json")):
        record.write_text(text)
    assert failed(once(project)) == set()


def test_checks_that_an_older_buildfarm_did_not_make_run_without_the_others(
    project: SmallProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = project.store / "proofs" / f"{once(project).proofs[0].wheel}.json"
    kept = [proof for proof in json.loads(record.read_text()) if proof["check"] not in ("record", "loader")]
    record.write_text(json.dumps(kept))
    interpreters = can_gate(monkeypatch)
    made = {proof.check: proof.verdict for proof in once(project).proofs}
    assert made[Check.RECORD] is made[Check.LOADER] is Verdict.PASSED
    assert interpreters == [], "the op gate ran again"


def test_temporary_files_of_a_killed_run_are_deleted(project: SmallProject) -> None:
    half = project.root / "dist" / ".tiny-1.0.whl.999999999"
    half.write_bytes(b"half")
    once(project)
    assert not half.exists()


def test_other_files_in_dist_stay_and_stop_no_run(project: SmallProject) -> None:
    dist = project.root / "dist"
    broken = dist / "other-1.0-py3-none-any.whl"
    broken.write_bytes(b"no zip")
    foreign = pure_wheel(dist, "foreign", "1.0")
    try:
        assert once(project).exit is Exit.OK
        assert broken.read_bytes() == b"no zip"
        assert foreign.is_file()
    finally:
        for wheel in (broken, foreign):
            wheel.unlink()


def test_a_relative_store_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store(Path("here")).root == tmp_path / "here"


def test_the_report_holds_the_basis_of_every_proof(project: SmallProject) -> None:
    (entry,) = json.loads((project.root / "dist" / "report.json").read_text())["builds"]
    assert all(proof["basis"] for proof in entry["proofs"])
