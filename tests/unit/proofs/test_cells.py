"""Each cell its own proof: what was seen in it, what could not be, and what an earlier run saw already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BuildError, MissingToolError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import Matrix
from builder.matrix.plan import Build
from builder.proof import Check, Proof, Verdict
from builder.proofs import cells as room
from builder.proofs.cells import CellProver
from builder.store import Store
from builder.wheels.environment import DiskFullError, Environments
from builder.wheels.pythons import Interpreter, find_python
from tests.unit import loopback
from tests.unit.canned_gate import VERDICTS, can_gate
from tests.unit.matrix import make
from tests.unit.small_farm import PYTHON

HERE = Cell(Torch(2, 11, 0), Cuda(13, 0), PYTHON)
ELSEWHERE = Cell(Torch(2, 11, 0), Cuda(13, 0), Python(3, 99))
BUILD = Build("ops", "1.0", AbiClass.ABI3, HERE.torch, HERE.cuda, (PYTHON,), (Arch(9, 0),), Platform.LINUX_X86_64, ())

GATED = {str(check): str(verdict) for check, verdict in VERDICTS.items()}
NOTHING = dict.fromkeys(GATED, "not run")

Prove = Callable[..., dict[tuple[Cell | None, Check], Proof]]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loopback.torch_libraries(tmp_path_factory.mktemp("torch-lib"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def prove(
    store: Store, index: loopback.PackageIndex, libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Prove:
    """Prove a wheel of these contents in these cells; the index has their torch."""
    index.add_torch("2.11.0", "13.0", libraries=libraries)
    index.add("numpy", "2.0")
    environments = Environments(store, index.torch_index)
    can_gate(monkeypatch)

    def prove(
        *cells: Cell, module: str = "", requires: tuple[str, ...] = ("torch==2.11.*",)
    ) -> dict[tuple[Cell | None, Check], Proof]:
        wheel = loopback.pure_wheel(
            tmp_path, "ops", "1.0+cu130.torch211", {"ops/__init__.py": module}, requires=requires
        )
        stored = store.find("d" * 64) or store.add("d" * 64, wheel, {"provided": []})
        proofs = CellProver(store, environments).prove(
            stored, replace(BUILD, serves=cells), make.recipe("ops"), log=tmp_path / "log", stage=lambda _: None
        )
        return {(proof.cell, proof.check): proof for proof in proofs}

    return prove


def verdicts(proofs: dict[tuple[Cell | None, Check], Proof], cell: Cell) -> dict[str, str]:
    return {str(check): str(proof.verdict) for (where, check), proof in proofs.items() if where == cell}


def test_a_wheel_is_seen_in_the_cell_it_serves(prove: Prove, store: Store) -> None:
    proofs = prove(HERE)
    assert verdicts(proofs, HERE) == {"linkage": "passed", "import": "passed", **GATED}
    evidence = proofs[HERE, Check.IMPORT].evidence
    assert (evidence["torch"], evidence["cuda"]) == ("2.11.0", "13.0")
    assert {check for cell, check in proofs if cell is None} >= {Check.PAYLOAD, Check.TAGS, Check.METADATA}
    assert {(p.cell, p.check): p for p in store.proofs(proofs[HERE, Check.GPU_VALUES].wheel)} == proofs
    assert list((store.root / "work").glob("prove-*")) == []


#: For a C library that nobody has yet; two tags, as of auditwheel where a wheel earned a better one than was asked for.
NEWER = f"cp{PYTHON.major}{PYTHON.minor}-none-manylinux_2_98_x86_64.manylinux_2_99_x86_64"


@pytest.fixture
def newer(prove: Prove, store: Store, index: loopback.PackageIndex, tmp_path: Path) -> Callable[..., Proof]:
    """Prove such a wheel with these images; answers with the proof of its import."""
    del prove  # for its index alone
    wheel = loopback.pure_wheel(
        tmp_path, "ops", "1.0+cu130.torch211", {"ops/__init__.py": ""}, requires=("torch==2.11.*",), tag=NEWER
    )
    stored = store.add("e" * 64, wheel, {"provided": []})
    environments = Environments(store, index.torch_index)

    def ask(images: Matrix | None, cell: Cell = HERE) -> Proof:
        proofs = CellProver(store, environments, images).prove(
            stored, replace(BUILD, serves=(cell,)), make.recipe("ops"), log=tmp_path / "log", stage=lambda _: None
        )
        (imported,) = [proof for proof in proofs if proof.check is Check.IMPORT]
        return imported

    return ask


def test_a_wheel_for_a_newer_c_library_is_not_run_here_and_not_failed(newer: Callable[..., Proof]) -> None:
    imported = newer(None)
    assert imported.verdict is Verdict.NOT_RUN
    assert "newer C library than this machine's" in imported.reason


@pytest.mark.parametrize("cell", [HERE, ELSEWHERE], ids=["", "and this machine has no such Python"])
def test_with_images_such_a_wheel_is_seen_in_its_runtime_image_as_soon_as_there_is_an_engine(
    newer: Callable[..., Proof], cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make.matrix(["2.11"], ["13.0"], [str(PYTHON)])
    asked: list[Cell] = []

    class Containers:
        def open(self, cell: Cell, *_: object, **__: object) -> None:
            asked.append(cell)
            raise MissingToolError("as far as a unit test goes")

    def no_engine(*_: object) -> None:
        raise MissingToolError("the Docker engine does not answer")

    monkeypatch.setattr("builder.proofs.elsewhere.container_cells", no_engine)
    imported = newer(images, cell)
    assert (imported.verdict, imported.reason) == (Verdict.NOT_RUN, "the Docker engine does not answer")
    monkeypatch.setattr("builder.proofs.elsewhere.container_cells", lambda *_: Containers())
    imported = newer(images, cell)
    assert (imported.verdict, imported.reason) == (Verdict.NOT_RUN, "as far as a unit test goes")
    assert asked == [cell]


def test_what_is_decided_is_not_made_again(
    prove: Prove, index: loopback.PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prove(HERE)
    monkeypatch.setattr(room, "read_facts", lambda _: pytest.fail("the wheel was read again"))
    index.asked.clear()
    said = (tmp_path / "log").read_bytes()
    assert prove(HERE) == first
    assert index.asked == []
    assert (tmp_path / "log").read_bytes() == said


def test_a_module_that_does_not_import_fails_and_its_linkage_is_judged_apart(prove: Prove) -> None:
    proofs = prove(HERE, module="raise ImportError('undefined symbol: foo')")
    assert verdicts(proofs, HERE) == {"linkage": "passed", "import": "failed", **NOTHING}
    assert "undefined symbol: foo" in proofs[HERE, Check.IMPORT].reason


def test_a_wheel_that_forbids_the_torch_of_its_cell_fails(prove: Prove) -> None:
    proofs = prove(HERE, requires=("torch==2.10.*",))
    assert verdicts(proofs, HERE) == {"linkage": "passed", "import": "failed", **NOTHING}
    assert "it does not install: the packages do not go together: " in proofs[HERE, Check.IMPORT].reason


@pytest.mark.parametrize("gone", ["index", "dependency"])
def test_what_is_not_to_be_had_is_not_run_and_tried_again(
    gone: str, prove: Prove, index: loopback.PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires = ("torch==2.11.*", "einops")
    with monkeypatch.context() as patched:
        if gone == "index":
            patched.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
        proofs = prove(HERE, requires=requires)
    assert verdicts(proofs, HERE) == {"linkage": "not run", "import": "not run", **NOTHING}
    assert ("cannot be reached" if gone == "index" else "einops") in proofs[HERE, Check.IMPORT].reason
    index.add("einops", "0.8")
    assert verdicts(prove(HERE, requires=requires), HERE)["import"] == "passed"


def test_a_full_disk_is_no_word_against_the_wheel(prove: Prove, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    install = Environments.install

    def full(folder: Path, requirements: Sequence[str], **rest: Any) -> None:
        if any(requirement.endswith(".whl") for requirement in requirements):
            raise DiskFullError("the disk is full", stage="environment")
        install(folder, requirements, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(Environments, "install", staticmethod(full))
        with pytest.raises(BuildError, match="the disk is full"):
            prove(HERE)
    assert list((store.root / "proofs").iterdir()) == []
    assert verdicts(prove(HERE), HERE)["import"] == "passed"


def test_a_python_that_is_not_here_leaves_its_cell_not_run(prove: Prove, index: loopback.PackageIndex) -> None:
    proofs = prove(HERE, ELSEWHERE)
    assert verdicts(proofs, ELSEWHERE) == {"linkage": "not run", "import": "not run", **NOTHING}
    for check in (Check.LINKAGE, Check.IMPORT):
        assert proofs[ELSEWHERE, check].reason == "no Python 3.99 on this machine"
    assert verdicts(proofs, HERE)["import"] == "passed"
    index.asked.clear()
    assert prove(HERE, ELSEWHERE) == proofs
    assert index.asked == []


def test_a_cell_proven_before_stays_proven_when_another_comes_within_reach(
    prove: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prove(HERE, ELSEWHERE)

    def find(python: Python) -> Interpreter | None:
        return find_python(PYTHON) if python == ELSEWHERE.python else find_python(python)

    monkeypatch.setattr(room, "find_python", find)
    monkeypatch.setattr("builder.wheels.environment.find_python", find)
    # The site-packages of 3.99 are not where this Python has them; linkage is not what this test is about.
    monkeypatch.setattr("builder.proofs.local.collect_symbols", lambda _: None)
    after = prove(HERE, ELSEWHERE)
    assert after[ELSEWHERE, Check.IMPORT].verdict is Verdict.PASSED
    for check in (Check.LINKAGE, Check.IMPORT, Check.GPU_VALUES):
        assert after[HERE, check].verdict is before[HERE, check].verdict


def test_an_earlier_gpu_run_is_not_forgotten(prove: Prove, store: Store) -> None:
    before = prove(HERE)
    ran = replace(before[HERE, Check.GPU_VALUES], verdict=Verdict.PASSED, reason="H100")
    store.save_proofs([ran])
    assert prove(HERE, ELSEWHERE)[HERE, Check.GPU_VALUES] == ran
