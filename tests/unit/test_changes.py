"""What changes between two runs is asked anew, and what is refused now is not served from an earlier run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import Exit, UsageError
from builder.farm import open_store, run_build
from builder.log import console
from builder.proof import Check, Verdict
from builder.result import Result
from tests.unit.small_farm import SmallFarm, small_farm

pytestmark = pytest.mark.usefixtures("headers")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFarm]:
    root = tmp_path_factory.mktemp("changing")
    with pytest.MonkeyPatch.context() as monkeypatch, small_farm(root, monkeypatch) as made:
        monkeypatch.setattr(console, "quiet", True)
        made.recipe("tiny")
        made.matrix("tiny")
        yield made


@pytest.fixture(autouse=True)
def restored(farm: SmallFarm) -> Iterator[None]:
    """Each test begins with the good recipe, built and handed over."""
    recipe = farm.root / "tiny" / "extension.yaml"
    text = recipe.read_text()
    once(farm)
    yield
    recipe.write_text(text)


def once(farm: SmallFarm) -> Result:
    """One run of the only build."""
    _, (result,) = run_build(farm.options())
    return result


def edit(farm: SmallFarm, old: str, new: str) -> None:
    recipe = farm.root / "tiny" / "extension.yaml"
    assert old in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(old, new))


def wheels(farm: SmallFarm) -> list[str]:
    return sorted(path.name for path in (farm.root / "dist").glob("*.whl*"))


def failed(result: Result) -> set[Check]:
    return {proof.check for proof in result.proofs if proof.verdict is Verdict.FAILED}


def test_a_corrected_recipe_is_proven_anew(farm: SmallFarm) -> None:
    edit(farm, "imports: [tiny]", "imports: [aaaa]")
    assert failed(once(farm)) == {Check.IMPORT}
    edit(farm, "imports: [aaaa]", "imports: [tiny]")
    mended = once(farm)
    assert mended.reused
    assert failed(mended) == set()


def test_a_stricter_recipe_takes_no_verdict_of_the_looser(farm: SmallFarm) -> None:
    edit(farm, "cuda: optional", "cuda: required")
    result = once(farm)
    assert {Check.PAYLOAD, Check.DEVICE_CODE} <= failed(result)
    assert result.exit is Exit.FAILED


def test_what_is_refused_now_does_not_stay_from_before(farm: SmallFarm) -> None:
    assert len(wheels(farm)) == 3  # the wheel, its metadata and its statement
    edit(farm, "cuda: optional", "cuda: required")
    once(farm)
    assert wheels(farm) == []
    assert "tiny" not in (farm.root / "dist/simple/index.html").read_text()


def test_the_same_version_under_another_platform_tag_is_replaced(farm: SmallFarm) -> None:
    (wheel,) = (farm.root / "dist").glob("*.whl")
    stale = wheel.with_name(wheel.name.rpartition("-")[0] + "-manylinux_2_99_x86_64.whl")
    stale.write_bytes(wheel.read_bytes())
    once(farm)
    assert not stale.exists()
    assert wheel.exists()


def test_an_abi3_tag_that_is_not_kept_is_refused_whatever_the_recipe_claims(farm: SmallFarm) -> None:
    backend = farm.root / "tiny" / "src" / "backend.py"
    text = backend.read_text()
    source = farm.root / "tiny" / "src" / "tiny" / "_C.c"
    program = source.read_text()
    try:
        assert "cp{sys.version_info[0]}{sys.version_info[1]}" in text
        backend.write_text(text.replace("{tag}-{tag}", "cp310-abi3"))
        source.write_text(program.replace("PyModule_Create(", "_PyLong_Sign(Py_None), PyModule_Create("))
        result = once(farm)
    finally:
        backend.write_text(text)
        source.write_text(program)
    assert result.error is None, result.error
    assert Check.ABI3 in failed(result)
    assert not [name for name in wheels(farm) if "abi3" in name]


@pytest.mark.parametrize("text", ["", "[1]", '[{"wheel": "x"}]', "null"])
def test_records_of_another_release_are_made_anew(farm: SmallFarm, text: str) -> None:
    store = farm.store
    for record in (*store.glob("proofs/*.json"), *store.glob("builds/*/facts-*.json"), *store.glob("envs/*.json")):
        record.write_text(text)
    assert failed(once(farm)) == set()


def test_what_was_left_of_a_killed_write_is_swept(farm: SmallFarm) -> None:
    half = farm.root / "dist" / ".tiny-1.0.whl.999999999"
    half.write_bytes(b"half")
    once(farm)
    assert not half.exists()


def test_somebody_elses_broken_wheel_costs_nobody_their_own(farm: SmallFarm) -> None:
    broken = farm.root / "dist" / "other-1.0-py3-none-any.whl"
    broken.write_bytes(b"no zip")
    try:
        assert once(farm).exit is Exit.OK
        assert (farm.root / "dist/simple/tiny/index.html").is_file()
    finally:
        broken.unlink()


def test_a_dist_that_cannot_be_is_said_before_anything_is_built(farm: SmallFarm, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = replace(farm.options(), dist=tmp_path / "file" / "dist", store=tmp_path / "empty")
    with pytest.raises(UsageError, match="wheels cannot be put there"):
        run_build(options)
    assert not (tmp_path / "empty").exists()


def test_a_relative_store_is_the_same_wherever_a_program_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store(Path("here")).root == tmp_path / "here"


def test_report_says_what_a_proof_rests_on(farm: SmallFarm) -> None:
    (entry,) = json.loads((farm.root / "dist" / "report.json").read_text())["builds"]
    assert all(proof["basis"] for proof in entry["proofs"])
