"""One command builds an old source distribution: g++ refuses it twice, for different causes, and then compiles it."""

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.commands.building.build import run_build
from builder.recipes.cures import PATCH
from tests.fixtures.small_project import BACKEND, MODULE, SmallProject, small_project

pytestmark = pytest.mark.usefixtures("headers")

OLD = MODULE.format(answer="AT_CHECK + *std::make_unique<long>(1)").replace(
    "#include <Python.h>", "#include <Python.h>\n#define TORCH_CHECK 41"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    """A project with the recipe of a source distribution, which the store has."""
    with small_project(tmp_path / "project", monkeypatch) as made:
        package = made.recipe("old_ops", source=OLD)
        tree = package.parent
        (tree / "backend.py").write_text(BACKEND.replace('"-shared",', '"-shared", "-xc++",'))
        with tarfile.open(archive := tmp_path / "old_ops-1.0.tar.gz", "w:gz") as tar:
            tar.add(tree, "old_ops-1.0")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        kept = made.store / "sources/sdists" / digest
        kept.mkdir(parents=True)
        archive.rename(kept / archive.name)
        recipe = tree.parent / "extension.yaml"
        source = f"{{sdist: old_ops, version: 1.0, sha256: {digest}}}"
        recipe.write_text(recipe.read_text().replace("{path: src}", source))
        made.matrix("old_ops")
        yield made


def test_an_old_source_becomes_a_wheel(project: SmallProject, capfd: pytest.CaptureFixture[str]) -> None:
    [failed] = run_build(replace(project.options(), no_cures=True))[1]
    assert "AT_CHECK" in str(failed.error)
    assert not (project.root / "old_ops" / PATCH).exists()
    before = (project.root / "old_ops/src/old_ops/_C.c").read_bytes()
    [built] = run_build(project.options())[1]
    cured = [line.partition(" cured: ")[2] for line in capfd.readouterr().err.splitlines() if " cured: " in line]
    assert built.stored, built.error
    assert cured == ["old_ops/_C.c: AT_CHECK → TORCH_CHECK (torch 1.5 removed it)", "old_ops/_C.c: #include <memory>"]
    assert (project.root / "old_ops/src/old_ops/_C.c").read_bytes() == before
    [again] = run_build(project.options())[1]
    assert again.reused
    assert again.stored
    assert again.stored.digest == built.stored.digest
