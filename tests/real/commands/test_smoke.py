"""`smoke`: which wheels and cells it tests, what it saves and prints. The real op gate runs in tests/full."""

import json
import re
import shutil
import signal
import subprocess
import sys
import venv as venvs
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import BuildfarmError, Exit, NothingSelectedError
from builder.formats import sha256_of
from builder.gate.outcome import FAILED, Outcome
from builder.matrix.axes import Cell
from builder.matrix.load import load_matrix, load_recipes
from builder.proof import Check, Proof, Verdict, proofs_json, proofs_path
from builder.proofs.cells.prover import cell_basis
from builder.publish.index.new_wheel import proofs_beside
from builder.publish.runs.history import runs
from builder.store import Store
from tests.conftest import BUILDFARM, PATIENCE, owned, wait_until
from tests.unit import loopback
from tests.unit.canned_gate import can_gate
from tests.unit.loopback import PYTHON

RECIPE = """\
name: ops
version: 1.0
source: {source}
abi: [{{class: cpython, torch: "==2.11.*"}}]
imports: [ops]
"""
FAILURE = Outcome("values", "tiny::op", "plain", FAILED, "the result is 3 where 2 is expected")


class Workspace:
    """A matrix with one recipe, a package index with its torch, and a dist folder for wheels."""

    def __init__(self, root: Path, index: loopback.PackageIndex) -> None:
        self.root, self.index = root, index
        self.dist = root / "dist"
        self.dist.mkdir()

    def recipe(self, source: str = "{path: .}") -> None:
        (self.root / "ops").mkdir(exist_ok=True)
        (self.root / "ops" / "extension.yaml").write_text(RECIPE.format(source=source))
        (self.root / "matrix.yaml").write_text(
            f"torch: [2.11.0, 2.13.0]\ncuda: [13.0]\npython: [{PYTHON}, 3.14]\nextensions: [ops]\n"
            f"torch_index: {self.index.torch_index}\n"
        )

    def wheel(self, requires: str = "torch==2.11.*", name: str = "ops", folder: Path | None = None) -> Path:
        return loopback.pure_wheel(folder or self.dist, name, "1.0", {f"{name}/__init__.py": ""}, requires=[requires])

    def smoke(self, *arguments: str | Path) -> Result:
        argv = ["smoke", *map(str, arguments), "--matrix", str(self.root / "matrix.yaml")]
        if "--pack" not in argv:
            argv += ["--dist", str(self.dist), "--store", str(self.store)]
        return CliRunner().invoke(app, argv)

    @property
    def store(self) -> Path:
        return self.root / "store"


@pytest.fixture
def workspace(
    tmp_path: Path, index: loopback.PackageIndex, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    for version in ("2.11.0", "2.13.0"):
        index.add_torch(version, "13.0", libraries=libraries)
    index.add("numpy", "2.0")
    can_gate(monkeypatch)
    made = Workspace(tmp_path, index)
    made.recipe()
    return made


def error_of(result: Result) -> BuildfarmError:
    assert isinstance(result.exception, BuildfarmError), result.output
    return result.exception


def test_a_wheel_is_tested_in_its_cells_and_the_proofs_are_saved(workspace: Workspace) -> None:
    done = workspace.smoke(workspace.wheel(), "--python", str(PYTHON), "--json")
    assert done.exit_code == Exit.OK, done.output
    (one,) = json.loads(done.stdout)
    assert one["cell"] == f"torch2.11.0-cu130-{PYTHON.tag}"
    verdicts = {proof["check"]: proof["verdict"] for proof in one["proofs"]}
    assert (verdicts["import"], verdicts["values"], verdicts["gpu-values"]) == ("passed", "passed", "not run")
    saved = Store(workspace.store).proofs(one["proofs"][0]["wheel"])
    assert sorted(str(proof.check) for proof in saved) == sorted(verdicts)


def test_a_wheel_of_an_earlier_version_is_tested_only_by_its_name(workspace: Workspace) -> None:
    workspace.wheel()
    old = loopback.pure_wheel(workspace.dist, "ops", "0.9", {"ops/__init__.py": ""}, requires=["torch==2.11.*"])
    done = workspace.smoke("--python", str(PYTHON), "--json")
    assert [one["subject"] for one in json.loads(done.stdout)] == ["ops-1.0-py3-none-any.whl"]
    assert f"{old.name} is not tested: the recipe is for version 1.0" in " ".join(done.stderr.split())
    named = workspace.smoke(old, "--python", str(PYTHON), "--json")
    assert [one["subject"] for one in json.loads(named.stdout)] == [old.name]


def test_the_proofs_beside_a_wheel_of_build_are_updated(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = workspace.wheel()
    cell = Cell.parse(f"torch2.11.0-cu130-{PYTHON.tag}")
    built = [
        Proof(sha256_of(wheel), None, Check.TAGS, Verdict.PASSED),
        Proof(sha256_of(wheel), cell, Check.GPU_VALUES, Verdict.PASSED, when="2026-01-01T00:00:00+00:00"),
    ]
    proofs_path(wheel).write_bytes(proofs_json(built))
    can_gate(monkeypatch, FAILURE)
    assert workspace.smoke("--python", str(PYTHON)).exit_code == Exit.FAILED
    verdicts = {proof.check: proof.verdict for proof in proofs_beside(wheel, sha256_of(wheel))}
    assert verdicts[Check.TAGS] is Verdict.PASSED, "a check that smoke does not run"
    assert verdicts[Check.GPU_VALUES] is Verdict.PASSED, "not run here"
    assert (verdicts[Check.IMPORT], verdicts[Check.VALUES]) == (Verdict.PASSED, Verdict.FAILED)


def test_a_named_extension_is_the_recipe_of_a_wheel_with_another_name(workspace: Workspace) -> None:
    wheel = loopback.pure_wheel(workspace.root, "other", "1.0", {"ops/__init__.py": ""}, requires=["torch"])
    done = workspace.smoke(wheel, "--python", str(PYTHON), "--ext", "ops", "--json")
    assert done.exit_code == Exit.OK, done.output
    assert [one["cell"] for one in json.loads(done.stdout)] == [f"torch2.11.0-cu130-{PYTHON.tag}"], "as its recipe says"
    assert "no extension is named 'op'; did you mean `ops`?" in str(error_of(workspace.smoke(wheel, "--ext", "op")))


def test_each_cell_is_a_line(workspace: Workspace) -> None:
    done = workspace.smoke(workspace.wheel())
    assert done.exit_code == Exit.OK, done.output
    tested, unavailable = (line for line in done.stdout.splitlines() if line.startswith("  torch2.11.0"))
    assert tested.startswith(f"  torch2.11.0-cu130-{PYTHON.tag}: called 1 of 1 op; checks: ")
    assert unavailable.startswith("  torch2.11.0-cu130-cp314: checks: ")
    assert "no Python 3.14 on this machine" in done.stdout, done.stdout
    assert f"  not run   GPU           torch2.11.0-cu130-{PYTHON.tag}: no GPU on this machine" in done.stdout


def test_an_interrupt_ends_every_cell_and_keeps_those_that_have_ended(workspace: Workspace) -> None:
    """The cell of torch 2.13 hangs in the import; both run at the same time where the machine allows it."""
    module = "import time, torch\ntime.sleep(0 if torch.__version__ == '2.11.0' else 600)\n"
    wheel = loopback.pure_wheel(workspace.root, "other", "1.0", {"other/__init__.py": module}, requires=["torch"])
    argv: list[str | Path] = [BUILDFARM, "smoke", wheel, "--matrix", workspace.root / "matrix.yaml"]
    argv += ["--store", workspace.store, "--torch", "2.11.0", "--torch", "2.13.0", "--python", str(PYTHON)]
    process = subprocess.Popen(argv, cwd=workspace.root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said, hangs = "", f"torch2.13.0-cu130-{PYTHON.tag}: import ("
    ended = rf"torch2\.11\.0-cu130-{PYTHON.tag}: (tested|\d+ failed) in"
    while not (re.search(ended, said) and hangs in said):
        said += (line := process.stderr.readline())
        assert line, said
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == Exit.INTERRUPTED, said + err
    store = Store(workspace.store)
    wait_until(lambda: owned(store.owner("")) == [], "the end of the import that hangs")
    kept = {proof.cell for proof in store.proofs(sha256_of(wheel)) if proof.cell}
    assert kept == {Cell.parse(f"torch2.11.0-cu130-{PYTHON.tag}")}
    assert [path.name for path in (workspace.store / "work").glob("prove-*")] == []


def test_a_cell_that_the_machine_of_the_build_did_not_have_is_linked_here(workspace: Workspace) -> None:
    """Else `publish` would refuse a wheel that was built on one machine and tested on another."""
    wheel = workspace.wheel()
    (recipe,) = load_recipes(load_matrix(workspace.root / "matrix.yaml"))
    cell, basis = Cell.parse(f"torch2.11.0-cu130-{PYTHON.tag}"), cell_basis(recipe)[Check.LINKAGE]
    unlinked = Proof(sha256_of(wheel), cell, Check.LINKAGE, Verdict.NOT_RUN, "no such Python", basis=basis)
    proofs_path(wheel).write_bytes(proofs_json([unlinked]))
    done = workspace.smoke("--python", str(PYTHON), "--json")
    assert done.exit_code == Exit.OK, done.output
    verdicts = {proof.check: proof.verdict for proof in proofs_beside(wheel, sha256_of(wheel))}
    assert verdicts[Check.LINKAGE] is Verdict.PASSED


def test_not_run_does_not_replace_an_earlier_verdict(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = workspace.wheel()
    assert workspace.smoke(wheel, "--python", str(PYTHON)).exit_code == Exit.OK
    monkeypatch.setattr("builder.wheels.toolchain.machine.find_python", lambda _: None)
    done = workspace.smoke(wheel, "--python", str(PYTHON), "--json")
    (one,) = json.loads(done.stdout)
    assert {proof["verdict"] for proof in one["proofs"] if proof["cell"]} == {"not run"}
    saved = {str(proof.check): proof.verdict for proof in Store(workspace.store).proofs(one["proofs"][0]["wheel"])}
    assert (saved["values"], saved["import"]) == ("passed", "passed")


def test_a_wheel_without_a_recipe_is_tested_too(workspace: Workspace) -> None:
    done = workspace.smoke(workspace.wheel(name="stranger"), "--python", str(PYTHON), "--torch", "2.11")
    assert done.exit_code == Exit.OK, done.output
    assert "stranger-1.0" in done.stdout
    assert "has no recipe for stranger, so smoke imports the wheel and calls no op" in done.stderr
    assert "write a recipe with `source: {wheel: stranger, version: 1.0}`" in done.stderr


def without_matrix(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> Result:
    """Run `smoke` in an empty folder, which stays empty."""
    folder = workspace.root / "empty"
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["smoke", *map(str, arguments), "--store", str(workspace.store)])
    assert list(folder.iterdir()) == []
    return done


def test_a_named_wheel_needs_no_matrix(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.wheel(folder=workspace.index.root / "team")
    cell = ("--torch", "2.11", "--cuda", "13.0", "--python", str(PYTHON))
    named = ("ops==1.0", "--index", f"{workspace.index.url}/team/simple")
    for words in ((workspace.wheel(),), (f"{workspace.index.url}/team/ops-1.0-py3-none-any.whl",), named):
        done = without_matrix(workspace, monkeypatch, *words, *cell)
        assert done.exit_code == Exit.OK, done.output
        assert done.stdout.startswith("ops-1.0-py3-none-any.whl\n")
        assert "there is no recipe for ops" in done.stderr


def test_a_named_wheel_is_tested_with_a_torch_that_the_matrix_does_not_list(workspace: Workspace) -> None:
    wheel = workspace.wheel(name="stranger", requires="torch")
    done = workspace.smoke(wheel, "--torch", "2.12.0", "--python", str(PYTHON))
    assert "torch2.12.0-cu130" in done.stdout  # no check runs: the index has no such torch
    assert isinstance(error_of(workspace.smoke("--torch", "2.12.0")), NothingSelectedError)


def test_without_a_matrix_the_file_name_gives_the_python(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = loopback.pure_wheel(workspace.dist, "ops", "1.0", {"ops/__init__.py": ""}, tag="cp314-cp314-any")
    done = without_matrix(workspace, monkeypatch, wheel, "--torch", "2.11")
    assert "the cell is torch 2.11.0, CUDA 13.0, Python 3.14\n" in done.stderr


def test_without_matrix_and_options_the_versions_are_those_of_the_environment(
    workspace: Workspace, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = error_of(without_matrix(workspace, monkeypatch, workspace.wheel()))
    assert str(error) == f"--torch is not given, and the current environment has no torch ({environment})"
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    done = without_matrix(workspace, monkeypatch, workspace.wheel(requires="torch"))
    assert done.exit_code == Exit.OK, done.output
    assert f"torch2.13.0-cu130-{PYTHON.tag}" in done.stdout
    refused = without_matrix(workspace, monkeypatch, workspace.wheel())
    assert isinstance(error_of(refused), NothingSelectedError)
    assert "fits none of the selected cells: METADATA requires torch==2.11.*, not torch 2.13" in refused.stderr


def test_the_official_wheel_of_a_recipe_is_downloaded(workspace: Workspace) -> None:
    workspace.recipe("{wheel: ops, version: 1.0}")
    workspace.wheel(folder=workspace.index.root / "default")
    done = workspace.smoke("--ext", "ops", "--python", str(PYTHON))
    assert done.exit_code == Exit.OK, done.output
    assert done.stdout.startswith("ops-1.0-py3-none-any.whl\n")
    assert len(list((workspace.store / "sources" / "wheels").rglob("*.whl"))) == 1


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "env"
    venvs.create(folder, with_pip=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_a_packed_gate_runs_with_any_python(workspace: Workspace) -> None:
    (workspace.root / "ops" / "cases.py").write_text("CASES = []\n")
    done = workspace.smoke("--ext", "ops", "--pack", workspace.root / "gate.pyz")
    assert done.exit_code == Exit.OK, done.output
    ran = subprocess.run(
        [sys.executable, "-I", str(workspace.root / "gate.pyz"), "--help"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_run_is_recorded_and_appended_to_the_summary(workspace: Workspace, tmp_path: Path) -> None:
    workspace.recipe()
    wheel = workspace.wheel()
    store = Store(workspace.store)
    store.save_proofs([Proof(sha256_of(wheel), None, Check.TAGS, Verdict.PASSED)])
    assert workspace.smoke("--python", str(PYTHON), "--summary", tmp_path / "summary.md").exit_code == Exit.OK
    (run,) = runs(store)
    (entry,) = run.report["builds"]
    assert (entry["build"], entry["status"], entry["version"]) == (wheel.name, "tested", "1.0")
    checks = {proof["check"] for proof in entry["proofs"]}
    assert {"tags", "import", "values"} <= checks, "with those of the file, which smoke does not check"
    assert run.timeline
    (cell,) = entry["serves"]
    assert "install" in {each.stage for each in run.timeline.stages}, "the canned gate is too fast to be seen"
    assert {each.build for each in run.timeline.stages} == {f"{wheel.name} in {cell}"}
    summary = (tmp_path / "summary.md").read_text()
    assert f"| `{wheel.name}` | tested |" in summary


def test_stray_packages_of_a_wheel_are_named_and_not_imported(workspace: Workspace) -> None:
    files = {"stranger/__init__.py": "", "tests/__init__.py": "raise RuntimeError"}
    wheel = loopback.pure_wheel(workspace.dist, "stranger", "1.0", files, requires=["torch"])
    done = workspace.smoke(wheel, "--python", str(PYTHON), "--torch", "2.11")
    assert done.exit_code == Exit.OK, done.output
    assert re.search("  remark    contents .*the wheel installs tests at the top of site-packages", done.stdout), (
        done.stdout
    )


def test_a_failed_check_of_the_file_fails_the_run(workspace: Workspace) -> None:
    wheel = workspace.wheel()
    renamed = wheel.rename(wheel.with_name("ops-1.0+cu130-py3-none-any.whl"))
    done = workspace.smoke(renamed, "--python", str(PYTHON))
    assert done.exit_code == Exit.FAILED
    assert "  FAILED    metadata      the version is 1.0+cu130 in the file name and 1.0 in METADATA" in done.stdout
