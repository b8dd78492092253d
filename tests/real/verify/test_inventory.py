"""Symbol inventories: read from an index or a wheel when `verify` needs them, and kept."""

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import BuildfarmError, Code, Exit, UsageError
from builder.proofs.inventory import Release, Shelf, inventory_of_wheel
from builder.proofs.static.symbol_table import SymbolTable
from builder.store import Store
from builder.wheelfile.archive import WheelFile
from tests.real.verify.corpus import Wheel, inventory
from tests.unit.loopback import only, pure_wheel, served

TORCH_TAG = "cp312-cp312-manylinux_2_28_x86_64"
CUDA_13 = "__version__ = '2.11.0+cu130'\ncuda: str = '13.0'\n"


def verify(wheel: Path, store: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["verify", str(wheel), "--store", str(store), *options])


def raised(done: Result) -> Code:
    assert isinstance(done.exception, BuildfarmError)
    return done.exception.code


def torch_wheel(folder: Path, libraries: Path, version_file: str = CUDA_13) -> Path:
    """A torch wheel with a library that no inventory reads."""
    files: dict[str, str | bytes] = {f"torch/lib/{file.name}": file.read_bytes() for file in libraries.glob("lib*.so")}
    files |= {"torch/lib/libcudnn.so.9": b"not read", "torch/lib/libcudart.so.13": b"not read"}
    files |= {"torch/version.py": version_file}
    return pure_wheel(folder, "torch", "2.11.0", files, tag=TORCH_TAG)


def read(wheel: Path) -> tuple[Release, SymbolTable]:
    with WheelFile(wheel) as archive:
        return inventory_of_wheel(archive)


def test_inventory_of_a_wheel_file(stubs: Path, tmp_path: Path) -> None:
    release, table = read(torch_wheel(tmp_path, stubs))
    assert str(release) == "torch2.11.0-cu130-x86_64"
    assert "_ZN2at3fooEv" in table.libraries["libtorch_cpu.so"].defined
    assert "_ZN2at3barEv" not in table.libraries["libtorch_cpu.so"].defined
    assert not table.libraries["libcudnn.so.9"].read
    assert table.cxx11


def test_verify_reads_the_symbols_that_it_lacks(stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the torch that a wheel is pinned to and of the one that the user names, once; the torch wheel is not kept."""
    torch_wheel(tmp_path / "default", stubs)
    wheel, store = Wheel(requires=("torch==2.11.*",)).write(tmp_path, stubs), tmp_path / "store"
    with served(tmp_path) as index:
        only(index, tmp_path / "uv", monkeypatch)
        done = verify(wheel, store)
        assert "and read which symbols it defines" in done.stderr
        assert "links with torch 2.11" in done.stdout
        assert done.exit_code == Exit.OK
        assert not list(store.rglob("torch-*.whl"))
        index.requested.clear()
        assert verify(wheel, store, "--torch", "2.11").exit_code == Exit.OK
        assert index.requested == []

        unpinned = verify(Wheel(requires=("torch>=2.6",)).write(tmp_path / "other", stubs), tmp_path / "empty")
        assert "not run" in unpinned.stdout
        assert "`buildfarm verify` with `--torch SERIES` reads them" in " ".join(unpinned.stdout.split())


def test_an_index_without_the_torch_that_verify_needs(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is an error only if the user names the torch."""
    wheel, store = Wheel(requires=("torch==2.11.*",)).write(tmp_path, stubs), tmp_path / "store"
    with served(tmp_path) as index:
        only(index, tmp_path / "uv", monkeypatch)
        done = verify(wheel, store)
        assert "the symbols of torch 2.11.0 could not be read" in " ".join(done.stderr.split())
        assert "not run" in done.stdout
        assert done.exit_code == Exit.OK
        assert raised(verify(wheel, store, "--torch", "2.11")) is Code.PACKAGE_NOT_FOUND
        # An index that sends another release than it lists.
        torch_wheel(tmp_path / "default", stubs, CUDA_13.replace("13.0", "13.2"))
        assert raised(verify(wheel, store, "--torch", "2.11")) is Code.SOURCE_DIFFERS


@pytest.mark.parametrize(
    ("version_file", "says"),
    [
        ("__version__ = '2.11.0'\ncuda: Optional[str] = None\n", "was built without CUDA"),
        ("__version__ = 'nightly'\ncuda: str = '13.0'\n", "does not name a release"),
    ],
)
def test_torch_without_cuda_or_release_is_refused(version_file: str, says: str, stubs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        read(torch_wheel(tmp_path, stubs, version_file))


@pytest.mark.parametrize("libraries", [(), ("libtorch_cpu.so", "libc10.so")])
def test_wheel_without_the_libraries_of_torch_is_refused(libraries: tuple[str, ...], tmp_path: Path) -> None:
    """Files of these names may be no libraries."""
    files = {f"torch/lib/{name}": "no library" for name in libraries}
    files["torch/version.py"] = "__version__ = '2.11.0'\ncuda: str = '13.0'\n"
    with pytest.raises(UsageError, match="this is no torch wheel"):
        read(pure_wheel(tmp_path, "torch", "2.11.0", files))


def test_copied_folder_of_inventories_is_used(store: Path, stubs: Path, tmp_path: Path) -> None:
    """A machine without network gets the inventories so."""
    shutil.copytree(store / "inventories", tmp_path / "other" / "inventories")
    wheel = Wheel().write(tmp_path, stubs)
    outputs = [verify(wheel, place).stdout for place in (store, tmp_path / "other")]
    assert outputs[0] == outputs[1]
    assert "links with torch" in outputs[0]


def test_a_damaged_inventory_is_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "inventories")
    path = shelf.add(*inventory("2.11.0"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match="this is not a symbol inventory"):
        shelf.read(shelf.releases[0])


def test_the_store_prunes_the_unused_inventories(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "inventories")
    old, used = shelf.add(*inventory("2.10.0")), shelf.add(*inventory("2.11.0"))
    for path in (old, used):
        os.utime(path, (0, 0))
    shelf.read(shelf.releases[1])
    Store(tmp_path)
    done = CliRunner().invoke(app, ["store", "prune", "--keep-days", "30", "--store", str(tmp_path)])
    assert done.exit_code == Exit.OK, done.output
    assert (old.exists(), used.exists()) == (False, True)
