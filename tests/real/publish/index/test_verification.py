"""`publish` and `adopt` run the checks of `verify` that no earlier check of the wheel decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.check import OF_ANY_WHEEL, Check
from builder.commands.index import verification
from builder.commands.index.publish import publish_wheels
from builder.commands.index.verification import Verification
from builder.gate.acceptance import Accept
from builder.hashing import sha256_of
from builder.proof import Proof, Verdict, proofs_path
from builder.proofs.cells.prover import any_wheel_basis
from builder.proofs.inventory import Shelf
from builder.publish.index.levels import OF_VERIFY, Level
from builder.publish.index.new_wheel import proofs_beside
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.result import PublishOutcome, PublishResult
from builder.store import Store
from tests.conftest import lacking
from tests.real.verify.corpus import Lib, Wheel, with_lib, with_op
from tests.real.verify.made_up_torch import fill, stub_libraries
from tests.unit.loopback import pure_wheel
from tests.unit.matrix import make
from tests.unit.publish.index.make import proofs_of


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
