"""Symbol inventories: made from an index or a wheel, and kept."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import Exit, UsageError
from builder.proofs.inventory import Shelf
from builder.store import Store
from tests.real.verify.made_up_torch import inventory
from tests.unit.loopback import PackageIndex, only, pure_wheel, served

NAME = "torch2.11.0-cu130-x86_64"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inventory", *arguments])


def add(what: str, store: Path) -> list[dict[str, Any]]:
    """The rows of the inventories that were added."""
    done = run("add", what, "--store", str(store), "--json")
    assert done.exit_code == Exit.OK, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.fixture
def torch_wheel(stubs: Path, tmp_path: Path) -> Path:
    """A torch wheel with a library that no inventory reads."""
    index = PackageIndex(tmp_path)
    libraries = tmp_path / "torch-lib"
    libraries.mkdir()
    for file in stubs.glob("lib*.so"):
        (libraries / file.name).write_bytes(file.read_bytes())
    index.add_torch("2.11.0", "13.0", libraries=libraries)
    (wheel,) = (tmp_path / "default").glob("torch-*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("torch/lib/libcudnn.so.9", os.urandom(1 << 20))
    return wheel


def test_inventory_of_a_wheel_file(torch_wheel: Path, tmp_path: Path) -> None:
    (row,) = add(str(torch_wheel), tmp_path / "store")
    assert row["release"] == NAME
    shelf = Shelf(tmp_path / "store" / "inventories")
    table = shelf.read(shelf.releases[0]).table
    assert "_ZN2at3fooEv" in table.libraries["libtorch_cpu.so"].defined
    assert "_ZN2at3barEv" not in table.libraries["libtorch_cpu.so"].defined
    assert not table.libraries["libcudnn.so.9"].read
    assert table.cxx11


@pytest.mark.usefixtures("torch_wheel")
def test_a_wheel_of_an_index_is_read_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as index:
        only(index, tmp_path / "uv", monkeypatch)
        (row,) = add("2.11", tmp_path / "store")
    assert row["release"] == NAME
    assert not list((tmp_path / "store").rglob("*.whl"))


def test_release_that_exists_is_not_read_again(store: Path) -> None:
    assert add("2.11.0", store) == []


@pytest.mark.parametrize(
    ("version", "cuda", "says"),
    [("2.11.0", "", "was built without CUDA"), ("nightly", "13.0", "does not name a release")],
)
def test_torch_without_cuda_or_release_is_refused(
    version: str, cuda: str, says: str, stubs: Path, tmp_path: Path
) -> None:
    PackageIndex(tmp_path).add_torch(version, cuda, libraries=stubs)
    (wheel,) = (tmp_path / "default").glob("torch-*.whl")
    done = run("add", str(wheel), "--store", str(tmp_path / "store"))
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)


@pytest.mark.parametrize("libraries", [(), ("libtorch_cpu.so", "libc10.so")])
def test_wheel_without_the_libraries_of_torch_is_refused(libraries: tuple[str, ...], tmp_path: Path) -> None:
    """Files of these names may be no libraries."""
    files = {f"torch/lib/{name}": "no library" for name in libraries}
    files["torch/version.py"] = "__version__ = '2.11.0'\ncuda: str = '13.0'\n"
    done = run("add", str(pure_wheel(tmp_path, "torch", "2.11.0", files)), "--store", str(tmp_path / "store"))
    assert "this is no torch wheel" in str(done.exception)


def test_copied_folder_of_inventories_is_used(store: Path, tmp_path: Path) -> None:
    """A machine without network gets the inventories so."""
    shutil.copytree(store / "inventories", tmp_path / "other" / "inventories")
    listed = [run("list", "--store", str(place), "--json").stdout for place in (store, tmp_path / "other")]
    assert [row["release"] for row in json.loads(listed[0])] == [row["release"] for row in json.loads(listed[1])] != []


def test_changed_inventory_is_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "inventories")
    path = shelf.add(inventory("2.11.0"))
    path.write_bytes(path.read_bytes().replace(b"torch2.11.0", b"torch2.12.1"))
    done = run("list", "--store", str(tmp_path))
    assert isinstance(done.exception, UsageError)
    assert "differs from the sha256 in its file name" in str(done.exception)


def test_store_shows_inventories_and_prunes_the_unused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "inventories")
    old, used = shelf.add(inventory("2.10.0")), shelf.add(inventory("2.11.0"))
    for path in (old, used):
        os.utime(path, (0, 0))
    shelf.read(shelf.releases[1])
    Store(tmp_path)
    shown = CliRunner().invoke(app, ["store", "du", "--store", str(tmp_path)])
    assert "inventories" in shown.stdout
    done = CliRunner().invoke(app, ["store", "prune", "--keep-days", "30", "--store", str(tmp_path)])
    assert done.exit_code == Exit.OK, done.output
    assert (old.exists(), used.exists()) == (False, True)
