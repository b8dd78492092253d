"""`adopt`: wheels that others built, from a file to the index, with a torch of a few lines."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.errors import Exit
from builder.hashing import sha256_of
from builder.matrix.axes import Cell
from builder.proof import Check, Proof, Verdict
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.provenance import statement_path
from builder.store import Store
from tests.fixtures.compiled import torch_libraries
from tests.unit import loopback
from tests.unit.canned_gate import NO_GPU, can_gate
from tests.unit.conftest import Call
from tests.unit.loopback import PYTHON, pure_wheel
from tests.unit.publish.index.make import proofs_of

HERE = f"torch2.11.0-cu130-{PYTHON.tag}"
TAG = f"{PYTHON.tag}-{PYTHON.tag}-manylinux_2_17_x86_64"
CALL = "int {symbol}(void);\nint call(void) {{ return {symbol}(); }}\n"

Make = Callable[..., Path]
Adopt = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_libraries(tmp_path_factory.mktemp("torch-lib"))


@pytest.fixture(scope="module")
def library(torch: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """A library that calls this function of torch."""
    folder, made = tmp_path_factory.mktemp("library"), dict[str, bytes]()

    def make(symbol: str) -> bytes:
        if symbol not in made:
            out = folder / f"{symbol}.so"
            argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", str(torch / "libtorch_cpu.so"), "-o"]
            subprocess.run([*argv, str(out)], input=CALL.format(symbol=symbol), text=True, check=True)
            made[symbol] = out.read_bytes()
        return made[symbol]

    return make


@pytest.fixture
def make(tmp_path: Path, library: Callable[[str], bytes]) -> Make:
    """Make a wheel with one library."""

    def invoke(
        version: str = "1.0",
        *,
        symbol: str = "torch_symbol",
        tag: str = TAG,
        requires: str = "torch==2.11.*",
        folder: str = "downloads",
        module: str = "",
    ) -> Path:
        files: dict[str, str | bytes] = {"ops/__init__.py": module, "ops/_C.so": library(symbol)}
        return pure_wheel(tmp_path / folder, "ops", version, files, requires=[requires] if requires else [], tag=tag)

    return invoke


@pytest.fixture
def gates(index: loopback.PackageIndex, torch: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An index with torch for this CUDA; the interpreters of the op gates that ran."""
    index.add_torch("2.11.0", "13.0", libraries=torch)
    index.add("numpy", "2.0")
    return can_gate(monkeypatch)


@pytest.fixture
def adopt(call: Call, gates: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adopt:
    """Run `adopt` in an empty folder for CUDA 13.0; returns the exit code, the first wheel's JSON and stderr."""
    del gates
    monkeypatch.chdir(tmp_path)

    def invoke(*words: object, require: str = "cpu", cuda: str = "13.0") -> tuple[int, dict[str, Any], str]:
        options = ["--to", tmp_path / "index", "--store", tmp_path / "store", "--require", require, "--json"]
        code, out, err = call("adopt", *words, *options, *(["--cuda", cuda] if cuda else []))
        return code, json.loads(out)[0] if out else {}, err

    return invoke


def entries(tmp_path: Path) -> list[Any]:
    return Repository(Folder(tmp_path / "index")).entries("ops")


def test_a_version_of_an_index_is_published_with_its_origin_and_proofs(
    adopt: Adopt, make: Make, gates: list[Path], index: loopback.PackageIndex, tmp_path: Path
) -> None:
    wheel = make()
    (index.root / "default").mkdir(exist_ok=True)
    shutil.copy(wheel, index.root / "default")
    code, result, err = adopt("ops==1.0")
    assert (code, result["outcome"], result["cells"]) == (Exit.OK, "published", {HERE: "cpu"}), err
    origin = f"{index.url}/default/{wheel.name}"
    assert (result["origin"], result["built_here"], result["tested"]) == (origin, False, [HERE])
    assert "no recipe is for ops, so the wheel is imported and no op is called" in err
    assert "write a recipe with `source: {wheel: ops, version: 1.0}`" in err
    (entry,) = entries(tmp_path)
    assert (entry.farm.built_here, entry.farm.origin, entry.farm.statement) == (False, origin, "")
    assert entry.sha256 == sha256_of(wheel)
    page = (tmp_path / "index" / "projects" / "ops" / "index.html").read_text()
    assert f'not built here, from <a href="{origin}">' in page

    code, again, _ = adopt("ops==1.0")
    assert (code, again["outcome"], again["proofs"]) == (Exit.OK, "already published", result["proofs"])
    assert len(gates) == 1, "the second run proved something again"


def test_without_a_recipe_not_run_replaces_no_result_of_a_recipe(adopt: Adopt, make: Make, tmp_path: Path) -> None:
    wheel, store = make(), Store(tmp_path / "store")
    reason = "no GPU of the cell here"
    before = Proof(
        sha256_of(wheel), Cell.parse(HERE), Check.GPU_VALUES, Verdict.NOT_RUN, reason, basis="of the recipe with cases"
    )
    store.save_proofs([before])
    code, result, err = adopt(wheel)
    assert code == Exit.OK, err
    (told,) = [proof for proof in result["proofs"] if proof["check"] == "gpu-values"]
    assert (told["verdict"], told["reason"]) == ("not run", NO_GPU)
    assert before in store.proofs(sha256_of(wheel))


def test_a_cell_that_cannot_be_made_is_not_run_and_not_published(adopt: Adopt, make: Make, tmp_path: Path) -> None:
    code, result, err = adopt(make(), cuda="")
    assert code == Exit.OK, err
    assert result["tested"] == [HERE]
    assert set(result["not_run"]) == {HERE.replace("cu130", cuda) for cuda in ("cu126", "cu128")}
    (entry,) = entries(tmp_path)
    assert (entry.farm.cells, entry.farm.cuda, entry.farm.origin) == ({HERE: "cpu"}, ("cu130",), "a file")


def test_what_is_printed(call: Call, gates: list[Path], make: Make, tmp_path: Path) -> None:
    del gates
    code, out, _ = call("adopt", make(), "--to", tmp_path / "index", "--store", tmp_path / "store", "--cuda", "13.0")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == Exit.OK
    assert lines[0] == f"published ops-1.0-{TAG}.whl 1 cell: cpu (not all ops were run on a GPU)"
    assert lines[1:4] == [
        "not built here; from a file",
        f"tested in {HERE}",
        "the options leave out 2 more cells of the wheel",
    ]
    assert "not for torch 1.12 to 2.10 and 2.12 to 2.15: METADATA requires torch==2.11.*" in lines


def test_a_wheel_that_was_built_for_another_torch_is_refused(adopt: Adopt, make: Make, tmp_path: Path) -> None:
    code, result, _ = adopt(make(symbol="_ZN2at9not_thereEv"), require="none")
    assert (code, result["outcome"]) == (Exit.FAILED, "refused")
    assert "linkage: failed" in result["reasons"][0]
    assert "the library was built against a different torch" in result["reasons"][0]
    assert entries(tmp_path) == []


def test_a_statement_beside_the_wheel_is_not_believed(adopt: Adopt, make: Make, tmp_path: Path) -> None:
    wheel = make()
    statement_path(wheel).write_text("{}")
    assert adopt(wheel)[0] == Exit.OK
    (entry,) = entries(tmp_path)
    assert (entry.farm.built_here, entry.farm.statement) == (False, "")


def test_a_published_wheel_of_buildfarm_keeps_its_provenance(
    adopt: Adopt, make: Make, gates: list[Path], tmp_path: Path
) -> None:
    wheel = make()
    statement_path(wheel).write_text("{}")
    Repository(Folder(tmp_path / "index")).add(new_wheel(wheel, []))
    code, result, _ = adopt(wheel)
    assert (code, result["reasons"], gates) == (
        Exit.FAILED,
        ["the index has this wheel already, and buildfarm built it"],
        [],
    )
    (entry,) = entries(tmp_path)
    assert entry.farm.built_here


def test_another_machine_adds_to_the_cells_of_the_index(adopt: Adopt, make: Make, tmp_path: Path) -> None:
    wheel, other = make(), HERE.replace("2.11.0-cu130", "2.12.0-cu132")
    Repository(Folder(tmp_path / "index")).add(
        new_wheel(wheel, proofs_of(wheel, cells=[other]), origin="https://wheels.example/x.whl")
    )
    code, result, err = adopt(wheel)
    assert (code, result["tested"], result["cells"]) == (Exit.OK, [HERE], {HERE: "cpu", other: "cpu"}), err
    (entry,) = entries(tmp_path)
    assert entry.farm.cuda == ("cu130", "cu132")


def test_without_a_cell_only_the_file_is_checked(adopt: Adopt, make: Make) -> None:
    wheel = make("1.0+cpu")
    code, result, _ = adopt(wheel, require="static")
    assert (code, result["reasons"]) == (Exit.FAILED, ["the wheel claims no cell"])
    assert any("names a build without CUDA" in sentence for sentence in result["not_claimed"])
    code, result, _ = adopt(wheel, require="none")
    assert (code, result["outcome"], result["paths"]) == (Exit.OK, "published", ["simple", "cpu"])


def damage(wheel: Path) -> Path:
    wheel.write_bytes(wheel.read_bytes()[:-40])
    return wheel


def change(wheel: Path) -> Path:
    """Change METADATA, as who renames a wheel for another torch does."""
    data = wheel.read_bytes()
    assert b"torch==2.11.*" in data
    script = (
        "import sys, zipfile; path = sys.argv[1]; archive = zipfile.ZipFile(path); "
        "files = {n: archive.read(n).replace(b'torch==2.11', b'torch==2.12') for n in archive.namelist()}; "
        "archive = zipfile.ZipFile(path, 'w'); [archive.writestr(n, d) for n, d in files.items()]; archive.close()"
    )
    subprocess.run([sys.executable, "-c", script, str(wheel)], check=True)
    return wheel


@pytest.mark.parametrize(
    ("wheel", "reason"),
    [
        (lambda make: make(tag="cp312-cp312-win_amd64"), "the wheel is for win_amd64, and this machine tests"),
        (lambda make: damage(make()), "the file is not a complete zip archive"),
        (lambda make: change(make()), "METADATA differs from its hash in RECORD, so the wheel was changed"),
        (lambda make: pure_wheel(make().parent, "ops", "1.0"), "this is no torch extension: it has no shared library"),
        (lambda make: make(requires=""), "the libraries link torch, but METADATA does not require"),
        (lambda make: make(requires="torch==2.3.99"), "the wheel claims no cell"),
    ],
)
def test_a_wheel_that_cannot_be_used_is_refused_with_one_sentence(
    adopt: Adopt, make: Make, tmp_path: Path, wheel: Callable[[Make], Path], reason: str
) -> None:
    code, result, _ = adopt(wheel(make), require="static")
    assert (code, result["outcome"]) == (Exit.FAILED, "refused")
    assert len(result["reasons"]) == 1
    assert reason in result["reasons"][0]
    assert entries(tmp_path) == []


def test_a_different_file_of_a_published_name_is_refused_without_a_test(
    adopt: Adopt, make: Make, gates: list[Path]
) -> None:
    assert adopt(make())[0] == Exit.OK
    code, result, _ = adopt(make(module="# other", folder="other"))
    assert (code, len(gates)) == (Exit.FAILED, 1)
    assert result["reasons"] == ["the index has a different wheel of this name; a published file never changes"]


def test_a_folder_is_taken_wheel_by_wheel(call: Call, gates: list[Path], make: Make, tmp_path: Path) -> None:
    make(), make("2.0")
    damage(make("3.0"))
    words = ["--to", tmp_path / "index", "--store", tmp_path / "store", "--cuda", "13.0", "--json"]
    code, out, _ = call("adopt", tmp_path / "downloads", *words)
    assert code == Exit.FAILED
    assert [one["outcome"] for one in json.loads(out)] == ["published", "published", "refused"]
    assert len(gates) == 2


def test_cases_come_from_the_recipe_that_ext_names(
    call: Call, gates: list[Path], make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del gates
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "mine" / "extension.yaml"
    recipe.parent.mkdir()
    recipe.write_text("name: mine\nversion: 1.0\nsource: {path: .}\nabi: cpython\ncuda: optional\nimports: [absent]\n")
    Path("matrix.yaml").write_text(f"torch: [2.11]\ncuda: [13.0]\npython: [{PYTHON}]\nextensions: [mine]\n")
    words = ["--to", tmp_path / "index", "--store", tmp_path / "store", "--cuda", "13.0", "--require", "static"]
    wheel = make()
    assert call("adopt", wheel, *words)[0] == Exit.OK, "no recipe has the name of the wheel"
    code, out, _ = call("adopt", wheel, *words, "--ext", "mine")
    assert code == Exit.FAILED, "it was published before, and stays"
    assert "No module named 'absent'" in out
