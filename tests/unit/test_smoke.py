"""The verb `smoke`: which wheels, which cells, what is kept and said. The gate itself runs in tests/integration."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv as venvs
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from builder.cli import app
from builder.errors import Exit, FarmError, MissingToolError, NothingSelectedError, UsageError
from builder.gate.outcome import FAILED, Answer, Outcome
from builder.store import Store
from tests.unit import loopback
from tests.unit.canned_gate import answer, can_gate
from tests.unit.small_farm import PYTHON

RECIPE = """\
name: ops
version: 1.0
source: {source}
abi: [{{class: cpython, torch: "==2.11.*"}}]
imports: [ops]
"""
FAULT = Outcome("values", "tiny::op", "plain", FAILED, "the result is 3 where 2 is expected")


class Home:
    """A matrix with one recipe, an index with its torch, and the wheels one puts there."""

    def __init__(self, root: Path, index: loopback.PackageIndex) -> None:
        self.root, self.index = root, index
        self.dist = root / "dist"

    def recipe(self, source: str = "{path: .}") -> None:
        (self.root / "ops").mkdir(exist_ok=True)
        (self.root / "ops" / "extension.yaml").write_text(RECIPE.format(source=source))
        (self.root / "matrix.yaml").write_text(
            f"torch: [2.11.0, 2.13.0]\ncuda: [13.0]\npython: [{PYTHON}, 3.14]\nextensions: [ops]\n"
            f"torch_index: {self.index.torch_index}\n"
        )

    def wheel(self, requires: str = "torch==2.11.*", name: str = "ops", folder: Path | None = None) -> Path:
        return loopback.pure_wheel(folder or self.dist, name, "1.0", {f"{name}/__init__.py": ""}, requires=[requires])

    def smoke(self, *words: str | Path) -> Result:
        argv = ["smoke", *map(str, words), "--matrix", str(self.root / "matrix.yaml")]
        if "--here" not in argv:
            argv += ["--dist", str(self.dist), "--store", str(self.store)]
        return CliRunner().invoke(app, argv)

    @property
    def store(self) -> Path:
        return self.root / "store"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loopback.torch_libraries(tmp_path_factory.mktemp("torch-lib"))


@pytest.fixture
def home(tmp_path: Path, index: loopback.PackageIndex, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for version in ("2.11.0", "2.13.0"):
        index.add_torch(version, "13.0", libraries=libraries)
    index.add("numpy", "2.0")
    can_gate(monkeypatch)
    made = Home(tmp_path, index)
    made.recipe()
    return made


def error_of(result: Result) -> FarmError:
    assert isinstance(result.exception, FarmError), result.output
    return result.exception


def test_a_wheel_is_proven_in_the_cells_it_is_for_and_the_proofs_are_kept(home: Home) -> None:
    done = home.smoke(home.wheel(), "--python", str(PYTHON), "--json")
    assert done.exit_code == Exit.OK, done.output
    (one,) = json.loads(done.stdout)
    assert one["cell"] == f"torch2.11.0-cu130-{PYTHON.tag}"
    verdicts = {proof["check"]: proof["verdict"] for proof in one["proofs"]}
    assert (verdicts["import"], verdicts["values"], verdicts["gpu-values"]) == ("passed", "passed", "not run")
    kept = Store(home.store).proofs(one["proofs"][0]["wheel"])
    assert sorted(str(proof.check) for proof in kept) == sorted(verdicts)


def test_without_a_name_it_takes_the_wheels_of_dist(home: Home) -> None:
    home.wheel()
    done = home.smoke("--python", str(PYTHON))
    assert done.exit_code == Exit.OK, done.output
    assert f"ops-1.0-py3-none-any.whl in torch2.11.0-cu130-{PYTHON.tag}: 14 passed, 0 failed, 5 not run" in done.stdout


def test_several_cells_are_a_row_each(home: Home) -> None:
    done = home.smoke(home.wheel())
    assert done.exit_code == Exit.OK, done.output
    here, elsewhere = (line for line in done.stdout.splitlines() if line.startswith("torch2.11.0"))
    assert here.split() == [f"torch2.11.0-cu130-{PYTHON.tag}", *["ok"] * 15]
    assert elsewhere.split() == ["torch2.11.0-cu130-cp314", *["-"] * 15]
    assert "no Python 3.14 on this machine" in done.stdout
    assert "GPU: not run in torch2.11.0" in done.stdout


def test_nothing_run_at_all_is_not_all_well(home: Home) -> None:
    error = error_of(home.smoke(home.wheel(), "--python", "3.14"))
    assert isinstance(error, MissingToolError)
    assert "no check could be run" in str(error)


def test_containers_without_an_engine_are_said_before_anything(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = error_of(home.smoke(home.wheel(), "--executor", "docker"))
    assert isinstance(error, MissingToolError)
    assert "there is no docker program on PATH" in str(error)


def test_a_failure_is_named_and_is_the_exit_code(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    can_gate(monkeypatch, FAULT)
    done = home.smoke(home.wheel(), "--junit", home.root / "junit.xml")
    assert done.exit_code == Exit.FAILED
    assert "failed: values in torch2.11.0-cu130-" in done.stdout
    assert "tiny::op (plain): the result is 3 where 2 is expected" in done.stdout
    suites = ElementTree.parse(home.root / "junit.xml").getroot().findall("testsuite")
    assert [suite.get("failures") for suite in suites] == ["1", "0"]
    assert [len(suite.findall(".//skipped")) for suite in suites] == [5, 21]


def test_two_wheels_of_one_name_are_two_suites(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    can_gate(monkeypatch, FAULT)
    first, second = home.wheel(folder=home.root / "one"), home.wheel(folder=home.root / "two")
    home.smoke(first, second, "--python", str(PYTHON), "--junit", home.root / "junit.xml")
    suites = ElementTree.parse(home.root / "junit.xml").getroot().findall("testsuite")
    assert [suite.get("failures") for suite in suites] == ["1", "1"]
    assert str(suites[1].get("name")).endswith("(2)")


def test_what_could_not_be_run_does_not_take_the_place_of_what_was(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = home.wheel()
    assert home.smoke(wheel, "--python", str(PYTHON)).exit_code == Exit.OK
    monkeypatch.setattr("builder.wheels.environment.find_python", lambda _: None)
    done = home.smoke(wheel, "--python", str(PYTHON), "--json")
    (one,) = json.loads(done.stdout)
    assert {proof["verdict"] for proof in one["proofs"]} == {"not run"}
    kept = {str(proof.check): proof.verdict for proof in Store(home.store).proofs(one["proofs"][0]["wheel"])}
    assert (kept["values"], kept["import"]) == ("passed", "passed")


def test_a_wheel_nobody_wrote_a_recipe_for_is_taken_too(home: Home) -> None:
    done = home.smoke(home.wheel(name="stranger"), "--python", str(PYTHON), "--torch", "2.11")
    assert done.exit_code == Exit.OK, done.output
    assert "stranger-1.0" in done.stdout


def test_an_official_wheel_is_fetched_for_its_recipe(home: Home) -> None:
    home.recipe("{wheel: ops, version: 1.0}")
    home.wheel(folder=home.index.root / "default")
    done = home.smoke("--ext", "ops", "--python", str(PYTHON))
    assert done.exit_code == Exit.OK, done.output
    assert "ops-1.0-py3-none-any.whl in torch2.11.0" in done.stdout
    assert len(list((home.store / "sources" / "wheels").rglob("*.whl"))) == 1


def test_a_wheel_by_name_or_address_comes_from_an_index(home: Home) -> None:
    home.wheel(folder=home.index.root / "team")
    for words in (
        ("ops==1.0", "--index", f"{home.index.url}/team/simple"),
        (f"{home.index.url}/team/ops-1.0-py3-none-any.whl",),
    ):
        done = home.smoke(*words, "--python", str(PYTHON))
        assert done.exit_code == Exit.OK, done.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gone.whl"], "there is no such wheel"),
        (["folder/gone.whl"], "there is no such wheel"),
        (["ops"], "name one version, as NAME==VERSION"),
        (["ops>=1"], "name one version, as NAME==VERSION"),
        (["o p s"], "is no wheel: give a file, a URL or NAME==VERSION"),
        (["--ext", "obs"], "no extension is named 'obs'; did you mean `ops`?"),
        (["--here", "ops==1.0"], "takes what is installed"),
        (["--pack", "gate.pyz"], "name it with --ext"),
        (["--pack", "gate.pyz", "--ext", "ops", "--here"], "writes a file and runs nothing"),
        (["--here", "--executor", "docker"], "says nothing to --here and --pack"),
        (["--pack", "gate.pyz", "--ext", "ops", "--executor", "docker"], "says nothing to --here and --pack"),
    ],
)
def test_mistakes_are_one_sentence(home: Home, words: list[str], sentence: str) -> None:
    error = error_of(home.smoke(*words))
    assert isinstance(error, UsageError)
    assert sentence in str(error)


@pytest.mark.parametrize("words", [[], ["--torch", "2.13"]])
def test_no_wheel_for_any_cell_is_nothing_selected(home: Home, words: list[str]) -> None:
    if words:
        home.wheel()
    assert isinstance(error_of(home.smoke(*words)), NothingSelectedError)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "env"
    venvs.create(folder, with_pip=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_what_is_installed_here_needs_no_store_and_no_network(
    home: Home, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    assert isinstance(error_of(home.smoke("--here")), NothingSelectedError)
    (site,) = environment.glob("lib/python3*/site-packages")
    info = site / "ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n")
    asked: list[Path] = []

    def run_gate(interpreter: Path, *_: object, **__: object) -> Answer:
        asked.append(interpreter)
        return answer()

    monkeypatch.setattr("builder.smoke.run_gate", run_gate)
    done = home.smoke("--here")
    assert done.exit_code == Exit.OK, done.output
    assert asked == [environment / "bin" / "python"]
    assert "ops 1.0 in torch2.11.0-cu130-cp312" in done.stdout
    assert not home.store.exists()


def test_an_environment_whose_torch_does_not_import_is_said(
    home: Home, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "ops-1.0.dist-info").mkdir()
    (site / "ops-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n")
    fault = Outcome("ops", "", "", FAILED, "importing torch ends the process with exit status 1")
    monkeypatch.setattr("builder.smoke.run_gate", lambda *_, **__: Answer({}, [], [fault]))
    error = error_of(home.smoke("--here"))
    assert error.exit_code == Exit.TOOL_MISSING
    assert "torch does not import in this environment: importing torch ends" in str(error)


def test_a_packed_gate_runs_with_any_python(home: Home) -> None:
    (home.root / "ops" / "cases.py").write_text("CASES = []\n")
    done = home.smoke("--ext", "ops", "--pack", home.root / "gate.pyz")
    assert done.exit_code == Exit.OK, done.output
    ran = subprocess.run(
        [sys.executable, "-I", str(home.root / "gate.pyz"), "--help"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_cpu_build_of_torch_is_no_cell_and_that_is_said_at_once(home: Home, environment: Path) -> None:
    (site,) = environment.glob("lib/python3*/site-packages")
    for path, text in {
        "ops-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n",
        "torch/version.py": "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n",
    }.items():
        (site / path).parent.mkdir()
        (site / path).write_text(text)
    error = error_of(home.smoke("--here"))
    assert isinstance(error, UsageError)
    assert "CPU build" in str(error)
