"""`adopt` brings wheels of others to an index, pip and uv read it, and `publish` runs the checks of `verify` too."""

import ensurepip
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uv

from builder.commands.index import verification
from builder.commands.index.publish import PublishOutcome, PublishResult, publish_wheels
from builder.commands.index.verification import Verification
from builder.errors import Exit
from builder.formats import sha256_of
from builder.gate.outcome import Accept
from builder.matrix.axes import Cell
from builder.proof import OF_ANY_WHEEL, Check, Proof, Verdict, proofs_path
from builder.proofs.cells.prover import any_wheel_basis
from builder.proofs.inventory import Shelf
from builder.publish.index.install import install_commands
from builder.publish.index.levels import OF_VERIFY, Level
from builder.publish.index.new_wheel import new_wheel, proofs_beside
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.provenance import statement_path
from builder.store import Store
from tests.real.verify.conftest import stubs
from tests.real.verify.corpus import Lib, Wheel, fill, with_lib, with_op
from tests.unit import loopback
from tests.unit.canned_gate import NO_GPU, can_gate
from tests.unit.conftest import Call
from tests.unit.loopback import PYTHON, pure_wheel
from tests.unit.matrix.make import recipe as recipe_of
from tests.unit.publish.index.make import proofs_of
from tests.unit.publish.index.test_manage import index_of

__all__ = ["stubs"]  # a fixture: libraries to link with

HERE = f"torch2.11.0-cu130-{PYTHON.tag}"
TAG = f"{PYTHON.tag}-{PYTHON.tag}-manylinux_2_17_x86_64"

Make = Callable[..., Path]
Adopt = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="module")
def library(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """A library that calls this function of torch."""
    folder, made = tmp_path_factory.mktemp("library"), dict[str, bytes]()

    def make(symbol: str) -> bytes:
        if symbol not in made:
            out = folder / f"{symbol}.so"
            argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", str(libraries / "libtorch_cpu.so"), "-o"]
            source = f"int {symbol}(void);\nint call(void) {{ return {symbol}(); }}\n"
            subprocess.run([*argv, str(out)], input=source, text=True, check=True)
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
def gates(index: loopback.PackageIndex, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An index with torch for this CUDA; the interpreters of the op gates that ran."""
    index.add_torch("2.11.0", "13.0", libraries=libraries)
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


MODULE = {"my_ext.py": "VERSION = '1.0+cu13'\n"}
INSTALLERS = ("pip", "uv")
Install = Callable[[str, str, str, Path], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The pip of this environment, or the pip that comes with every Python (ensurepip)."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    folder = tmp_path_factory.mktemp("pip")
    with zipfile.ZipFile(bundled) as zipped:  # it starts faster when unpacked
        zipped.extractall(folder)
    return [sys.executable, str(folder / "pip")]


@pytest.fixture
def install(pip: list[str]) -> Install:
    """Run an installer, given its name, the index, the requirement and the target folder."""
    programs = {
        "pip": [*pip, "--isolated", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "install"],
        "uv": [uv.find_uv_bin(), "--no-config", "--no-cache", "pip", "install", "--python", sys.executable],
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}

    def run(installer: str, index: str, wanted: str, target: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*programs[installer], "--index-url", index, "--target", str(target), wanted],
            env=clean | {"PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installs_from_the_folder(tmp_path: Path, install: Install, installer: str) -> None:
    dist = tmp_path / "a folder & more"
    wheels = (pure_wheel(tmp_path, "my_ext", "1.0+cu13", MODULE), pure_wheel(tmp_path, "my_ext", "1.0+cu14"))
    simple = index_of(dist, *wheels)
    done = install(installer, simple.as_uri(), "my-ext==1.0+cu13", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").read_text() == "VERSION = '1.0+cu13'\n"


@pytest.mark.parametrize("bound", ["<3.4", "==3.4.*", "!=3.11.*,!=3.12.*,!=3.13.*"])
def test_uv_ignores_the_upper_bounds_of_requires_python(tmp_path: Path, install: Install, bound: str) -> None:
    """The check `modules` relies on it; pip refuses such a wheel."""
    simple = index_of(tmp_path / "dist", pure_wheel(tmp_path, "my_ext", "1.0", requires_python=bound))
    done = {each: install(each, simple.as_uri(), "my-ext", tmp_path / each).returncode for each in INSTALLERS}
    assert (done["pip"] != 0, done["uv"]) == (True, 0)


@pytest.mark.parametrize("installer", INSTALLERS)
@pytest.mark.parametrize(("torch", "in_index"), [("2.11.0", False), ("2.4.1+cu124", False), ("2.11.0", True)])
def test_the_install_command_works_in_an_empty_environment(
    tmp_path: Path, pip: list[str], installer: str, torch: str, in_index: bool
) -> None:
    dist: Path | str = tmp_path / "it's a dist"
    wheel = pure_wheel(tmp_path / "it's a dist", "my_ext", "1.0+cu13", requires=["torch>=2.4"])
    if in_index:
        Repository(Folder(tmp_path / "it's an index")).add(new_wheel(wheel, []))
        dist = (tmp_path / "it's an index").as_uri() + "/simple/"
    with loopback.served(tmp_path / "index") as index:
        for version, channel in {"2.11.0": "default", "2.4.1": "default", "2.4.1+cu124": "whl/cu124"}.items():
            index.add("torch", version, channel=channel)
        for version in ("1.0", "9.0"):  # a foreign package of the same name
            index.add("my_ext", version)
        cell = Cell.parse("torch2.4.1-cu124-cp311" if "+" in torch else "torch2.11.0-cu130-cp311")
        commands = install_commands(dist, "my-ext", "1.0+cu13", [cell], index.torch_index)
        (command,) = (each for each in commands if each.startswith(f"{installer} "))
        programs = {"pip": [*pip, "--disable-pip-version-check"], "uv": [uv.find_uv_bin(), "--no-cache"]}
        function = f'{installer}() {{ {shlex.join(programs[installer])} "$@" --target "$SITE"; }}'
        done = subprocess.run(
            ["bash", "-c", f"{function}; {command}"],
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "SITE": str(tmp_path / "site"),
                "PIP_INDEX_URL": index.default,
                "UV_DEFAULT_INDEX": index.default,
                "UV_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, "pip warns of each project that a folder lacks, given as --extra-index-url"
    assert [path.name for path in (tmp_path / "site").glob("my_ext-*")] == ["my_ext-1.0+cu13.dist-info"]
    assert (tmp_path / "site" / "my_ext.py").exists()
    assert (tmp_path / "site" / f"torch-{torch}.dist-info").is_dir()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with symbol inventories."""
    fill(Shelf(tmp_path / "store" / "inventories"))
    return Store(tmp_path / "store")


def published(wheel: Path, store: Store, level: Level, **options: object) -> PublishResult:
    repository = Repository(Folder(wheel.parent / "index"))
    (result,) = publish_wheels(repository, [wheel], store, [level], **options)  # type: ignore[arg-type]
    return result


EXECSTACK = with_lib(Lib(flags=("-Wl,-z,execstack",)))


def test_sound_wheel_has_the_proofs_of_verify(stubs: Path, store: Store, tmp_path: Path) -> None:
    wheel = Wheel().write(tmp_path, stubs)
    store.save_proofs(proofs_of(wheel))
    assert published(wheel, store, Level.CPU).outcome is PublishOutcome.PUBLISHED
    attached = next((tmp_path / "index").rglob("*.proofs.json"))
    copy = proofs_path(wheel)
    copy.write_bytes(attached.read_bytes())
    checks = [proof.check for proof in proofs_beside(wheel, sha256_of(wheel)) if proof.cell is None]
    assert sorted(checks) == sorted([*{p.check for p in proofs_of(wheel) if p.cell is None}, *OF_VERIFY])


@pytest.mark.parametrize("level", [Level.NONE, Level.CPU])
@pytest.mark.parametrize(
    ("wheel", "reason"),
    [
        (EXECSTACK, "the wheel file: loader: failed: ops/_C.cpython-312-x86_64-linux-gnu.so needs an executable stack"),
        (
            with_op(torch="added", requires=("torch>=2.10,<2.13",)),
            "the wheel file: window: failed: METADATA allows torch 2.10 and 2.11, but the wheel links with torch 2.12",
        ),
        (
            Wheel(after=lambda members: members.update({"ops/__init__.py": b"import os"})),
            "the wheel file: record: failed: ops/__init__.py differs",
        ),
    ],
    ids=["loader", "window", "record"],
)
def test_failure_refuses(wheel: Wheel, reason: str, level: Level, stubs: Path, store: Store, tmp_path: Path) -> None:
    path = wheel.write(tmp_path, stubs)
    store.save_proofs(proofs_of(path))
    result = published(path, store, level)
    assert result.outcome is PublishOutcome.REFUSED
    assert [one for one in result.reasons if one.startswith(reason)], result.reasons


def test_a_file_beside_the_wheel_does_not_turn_record_and_loader_off(stubs: Path, store: Store, tmp_path: Path) -> None:
    wheel = Wheel(after=lambda members: members.update({"ops/__init__.py": b"import os"})).write(tmp_path, stubs)
    forged = [Proof(sha256_of(wheel), None, check, Verdict.PASSED, basis=any_wheel_basis()) for check in OF_ANY_WHEEL]
    made = {proof.check: proof.verdict for proof in Verification(store).added(wheel, [*proofs_of(wheel), *forged])}
    assert made[Check.RECORD] is Verdict.FAILED


@pytest.mark.parametrize("number", ["STATIC_FORMAT", "VERIFY_FORMAT"])
def test_a_raised_number_changes_the_basis(number: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Verification(store).basis
    assert Verification(store).basis == before
    monkeypatch.setattr(verification, number, 0)
    assert Verification(store).basis != before


def test_without_inventories_nothing_is_refused(stubs: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "empty")
    wheel = Wheel().write(tmp_path, stubs)
    store.save_proofs(proofs_of(wheel))
    result = published(wheel, store, Level.CPU)
    assert result.outcome is PublishOutcome.PUBLISHED
    assert result.unverified.startswith("the symbols of torch")


def test_what_was_accepted_stays_accepted(stubs: Path, store: Store, tmp_path: Path) -> None:
    wheel = EXECSTACK.write(tmp_path, stubs)
    proofs = proofs_of(wheel)
    store.save_proofs(proofs)
    recipe = replace(recipe_of("ops"), accepts=(Accept("loader", "the old compiler of upstream"),))
    assert published(wheel, store, Level.CPU, recipes=[recipe]).outcome is PublishOutcome.PUBLISHED
    other = EXECSTACK.write(tmp_path / "index", stubs)
    accepted = Proof(proofs[0].wheel, None, Check.LOADER, Verdict.ACCEPTED, "an executable stack")
    store.save_proofs([accepted])
    assert published(wheel, store, Level.CPU).outcome is PublishOutcome.UNCHANGED
    assert other.is_file()


def test_untested_wheel_gets_every_check_of_the_file(stubs: Path, store: Store, tmp_path: Path) -> None:
    bad = Wheel(requires=()).write(tmp_path, stubs)
    result = published(bad, store, Level.NONE)
    assert result.outcome is PublishOutcome.REFUSED
    assert any("metadata: failed: the libraries link torch, but METADATA" in one for one in result.reasons), result
    good = Wheel(version="1.1+cu130").write(tmp_path, stubs)
    assert published(good, store, Level.NONE).outcome is PublishOutcome.PUBLISHED
    assert published(good, store, Level.STATIC).reasons[-1] == "the wheel file: import: not run: no cell was tested"


def test_dependency_without_libraries_is_published(store: Store, tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path / "dist", "helper", "1.0", requires=["torch"])
    assert published(wheel, store, Level.NONE).outcome is PublishOutcome.PUBLISHED
