"""pip and uv read the index; `publish` and `adopt` run the checks of `verify` that no earlier check decided."""

import ensurepip
import importlib.util
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import uv

from builder.check import OF_ANY_WHEEL, Check
from builder.commands.index import verification
from builder.commands.index.publish import PublishOutcome, PublishResult, publish_wheels
from builder.commands.index.verification import Verification
from builder.gate.outcome import Accept
from builder.hashing import sha256_of
from builder.matrix.axes import Cell
from builder.proof import Proof, Verdict, proofs_path
from builder.proofs.cells.prover import any_wheel_basis
from builder.proofs.inventory import Shelf
from builder.publish.index.install import install_commands
from builder.publish.index.levels import OF_VERIFY, Level
from builder.publish.index.new_wheel import new_wheel, proofs_beside
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.store import Store
from tests.conftest import lacking
from tests.real.verify.corpus import Lib, Wheel, fill, stub_libraries, with_lib, with_op
from tests.unit import loopback
from tests.unit.loopback import pure_wheel
from tests.unit.matrix import make
from tests.unit.publish.index.make import proofs_of
from tests.unit.publish.index.test_manage import index_of

MODULE = {"my_ext.py": "VERSION = '1.0+cu13'\n"}
PIP_OPTIONS = ["--isolated", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]


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
        "pip": [*pip, *PIP_OPTIONS, "install"],
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


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shutil

    if shutil.which("g++") is None:
        lacking("no g++ on this machine")
    return stub_libraries(tmp_path_factory.mktemp("stubs"))


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


@pytest.mark.parametrize("level", [Level.NONE, Level.CPU, Level.VERIFY])
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


def test_without_inventories_only_verify_is_refused(stubs: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "empty")
    wheel = Wheel().write(tmp_path, stubs)
    store.save_proofs(proofs_of(wheel))
    result = published(wheel, store, Level.VERIFY)
    assert result.outcome is PublishOutcome.REFUSED
    assert result.reasons[0].startswith("the wheel file: window: not run: the symbols of torch")
    assert published(wheel, store, Level.CPU).outcome is PublishOutcome.PUBLISHED


def test_what_was_accepted_stays_accepted(stubs: Path, store: Store, tmp_path: Path) -> None:
    wheel = EXECSTACK.write(tmp_path, stubs)
    proofs = proofs_of(wheel)
    store.save_proofs(proofs)
    recipe = replace(make.recipe("ops"), accepts=(Accept("loader", "the old compiler of upstream"),))
    assert published(wheel, store, Level.CPU, recipes=[recipe]).outcome is PublishOutcome.PUBLISHED
    other = EXECSTACK.write(tmp_path / "index", stubs)
    accepted = Proof(proofs[0].wheel, None, Check.LOADER, Verdict.ACCEPTED, "an executable stack")
    store.save_proofs([accepted])
    assert published(wheel, store, Level.VERIFY).outcome is PublishOutcome.UNCHANGED
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
