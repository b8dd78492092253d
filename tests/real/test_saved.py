"""`buildfarm store save` and `--from`: a plan is built from a folder, without the index and with the same wheel."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder import SAVED
from builder.commands.building.build import run_build
from builder.commands.saving import CheckSavedOptions, SaveOptions, check, save
from builder.errors import BuildfarmError, Exit, MissingToolError, UsageError
from builder.images.saved import LIST, SIGNERS, Saved, check_cells
from builder.log import console
from builder.proof import Verdict
from builder.publish.results import BuildResult
from builder.wheelfile.archive import differences
from tests.conftest import committed
from tests.fixtures.small_project import SmallProject, small_project

pytestmark = pytest.mark.usefixtures("headers")


@dataclass(frozen=True)
class Case:
    """A project that was built and saved, and whose index is gone."""

    project: SmallProject
    folder: Path
    built: BuildResult

    def save(self, folder: Path, key: Path | None = None) -> None:
        matrix = self.project.root / "matrix.yaml"
        save(SaveOptions(folder=folder, matrix=matrix, executor="local", store=self.project.store, sign=key))

    def build_again(self, folder: Path, to: Path) -> BuildResult:
        options = replace(self.project.options(), saved=folder, store=to / "store", dist=to / "dist")
        (result,) = run_build(options)[1]
        return result


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    root = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(console, "quiet", True)
        with small_project(root / "project", monkeypatch) as made:
            repository = made.recipe("tiny").parent.rename(root / "repository")
            source = {"git": repository.as_uri(), "revision": committed(repository)}
            recipe = made.root / "tiny" / "extension.yaml"
            text = recipe.read_text().replace("{path: src}", json.dumps(source))
            recipe.write_text(f"{text}companions: [numpy, absent]\n")
            made.matrix("tiny")
            (built,) = run_build(made.options())[1]
            found = Case(made, root / "saved", built)
            found.save(found.folder)
        shutil.rmtree(root / "repository")
        monkeypatch.setenv("UV_CACHE_DIR", str(root / "new-cache"))
        yield found


@pytest.fixture
def copied(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the saved folder, in use."""
    folder = tmp_path / "copied"
    shutil.copytree(case.folder, folder)
    monkeypatch.setenv(SAVED, str(folder))
    return folder


def test_the_same_wheel_is_built_and_tested_without_the_index(case: Case, copied: Path, tmp_path: Path) -> None:
    result = case.build_again(copied, tmp_path)
    assert not result.reused
    verdicts = [[(one.check, one.cell, one.verdict) for one in each.proofs] for each in (case.built, result)]
    assert verdicts[0] == verdicts[1]
    assert Verdict.PASSED in {one.verdict for one in result.proofs if one.cell}
    wheels = [next(dist.glob("*.whl")) for dist in (case.project.root / "dist", tmp_path / "dist")]
    changed = {line.rpartition("/")[2] for line in differences(*wheels)}
    assert changed == {"env.txt: differs", "RECORD: differs"}, "the small backend writes its variables into env.txt"


def test_each_damaged_file_is_named(
    case: Case, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found() -> tuple[Exit, str]:
        capsys.readouterr()
        return check(CheckSavedOptions(folder=copied)), capsys.readouterr().out

    names = sorted(Saved.read(copied).files)
    assert {name.split("/")[0] for name in names} >= {"files", "index", "store"}
    assert found() == (Exit.OK, f"all {len(names)} files are as listed\n")
    for name in names:
        path, whole = copied / name, (copied / name).read_bytes()
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        status, text = found()
        assert (status, text.count("\n"), str(path) in text) == (Exit.FAILED, 1, True)
        if name.startswith(("index/", "store/")) or "/torch-2.11.0" in name:
            with pytest.raises(BuildfarmError, match="damaged") as caught:
                raise case.build_again(copied, tmp_path / path.name).error or AssertionError
            assert caught.value.where == str(path)
        path.write_bytes(whole)
    path.unlink()
    with pytest.raises(UsageError, match="damaged: No such file"):
        case.build_again(copied, tmp_path / "missing")
    (copied / LIST).write_text((copied / LIST).read_text().replace('"store/envs/', '"store//envs/'))
    with pytest.raises(UsageError, match="no path below the folder"):
        Saved.read(copied)


def test_what_a_folder_lacks_is_said_before_a_build_starts(copied: Path) -> None:
    with pytest.raises(MissingToolError, match="lacks 1 cell for the executor docker: torch2") as caught:
        check_cells(["torch2.9.1-cu128-cp312"], "docker")
    assert f"buildfarm store save {copied} --executor docker" in caught.value.hints[0]


def test_a_later_save_adds_what_is_new_and_signs_the_list(
    case: Case, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, signers = tmp_path / "key", tmp_path / "signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers.write_text(f"farm {key.with_suffix('.pub').read_text()}")
    before = Saved.read(copied)
    case.save(copied, key)
    assert "; 0 bytes of them are new." in capsys.readouterr().out
    monkeypatch.setenv(SIGNERS, str(signers))
    assert Saved.read(copied) == before
    signers.write_text(f"farm {key.with_suffix('.pub').read_text().replace('AAAAC3', 'AAAAC4')}")
    with pytest.raises(UsageError, match="not signed by a key in"):
        Saved.read(copied)
    monkeypatch.delenv(SIGNERS)
    (copied / LIST).write_text(f"{(copied / LIST).read_text()}\n")
    with pytest.raises(UsageError, match="the signature is not of this list"):
        Saved.read(copied)
