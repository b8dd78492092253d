"""`verify` finds every planted fault and raises no false alarm; the symbol inventories that it reads and keeps."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import BuildfarmError, Code, Exit, UsageError
from builder.proofs.inventory import Release, Shelf, inventory_of_wheel
from builder.proofs.static.symbol_table import SymbolTable
from builder.store import Store
from builder.wheelfile.archive import WheelFile
from tests.real.verify.corpus import FAULTS, NATIVE, SASS, SOUND, Fault, Lib, Wheel, inventory, with_lib, with_op
from tests.unit.loopback import PackageIndex, pure_wheel


def run(store: Path, *words: object) -> Result:
    """`buildfarm verify` with the made-up torch releases."""
    return CliRunner().invoke(app, ["verify", *map(str, words), "--store", str(store)])


def verify(wheel: object, store: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the proofs of one wheel."""
    done = run(store, wheel, "--json", *options)
    assert done.exit_code in (Exit.OK, Exit.FAILED), done.output
    (one,) = json.loads(done.stdout)
    return done.exit_code, one["proofs"]


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_under_its_name(name: str, stubs: Path, store: Path, tmp_path: Path) -> None:
    fault: Fault = FAULTS[name]
    code, proofs = verify(fault.wheel.write(tmp_path, stubs), store, *fault.options)
    failed = {proof["check"]: proof["reason"] for proof in proofs if proof["verdict"] == "failed"}
    assert fault.check in failed, proofs
    assert fault.says in failed[fault.check]
    assert code == Exit.FAILED


@pytest.mark.parametrize("name", SOUND)
def test_no_false_alarm(name: str, stubs: Path, store: Path, tmp_path: Path) -> None:
    wheel: Wheel = SOUND[name]
    code, proofs = verify(wheel.write(tmp_path, stubs), store)
    assert [proof for proof in proofs if proof["verdict"] == "failed"] == []
    assert {proof["verdict"] for proof in proofs if proof["check"] == "linkage"} == {"passed"}
    assert code == Exit.OK


def test_remarks_are_no_failures(stubs: Path, store: Path, tmp_path: Path) -> None:
    lib = Lib(flags=("-Wl,-rpath,/opt/cuda/lib64", "-Wl,--disable-new-dtags"))
    wheel = with_lib(lib, pure=True, requires=("torch>=2.11",))
    code, proofs = verify(wheel.write(tmp_path, stubs), store)
    remarks = {proof["check"]: " ".join(proof["evidence"].get("remarks", ())) for proof in proofs}
    assert "`Root-Is-Purelib: true`" in remarks["contents"]
    assert "/opt/cuda/lib64" in remarks["loader"]
    assert "also links with torch 2.10" in remarks["window"]
    assert "no upper limit for torch" in remarks["window"]
    reads = "`buildfarm verify` with `--torch 2.13 --torch 2.14 --torch 2.15` reads them"
    assert f"the symbols of torch 2.13 to 2.15 are unknown: {reads}" in remarks["window"]
    assert code == Exit.OK


def test_pure_python_wheel_has_nothing_to_link(stubs: Path, store: Path, tmp_path: Path) -> None:
    code, proofs = verify(Wheel(libs={}, tag="py3-none-any", version="1.0").write(tmp_path, stubs), store)
    reasons = {proof["check"]: (proof["verdict"], proof["reason"]) for proof in proofs}
    assert reasons["payload"] == ("passed", "pure Python, without a library")
    assert code == Exit.OK


def test_what_is_said_of_a_sound_wheel(stubs: Path, store: Path, tmp_path: Path) -> None:
    """Symbols alone do not prove a C++ ABI, so torch releases that METADATA excludes are a remark only."""
    wheel = Wheel().write(tmp_path, stubs)
    code, proofs = verify(wheel, store, "--max-size", "300MB")
    of = {proof["check"]: proof for proof in proofs}
    evidence = of["window"]["evidence"]
    assert (code, evidence["window"], evidence["links"]) == (Exit.OK, ["2.11"], ["2.10", "2.11", "2.12"])
    assert "does not prove that torch's C++ classes have the same layout" in " ".join(evidence["remarks"])
    assert (of["size"]["verdict"], of["size"]["reason"][-22:]) == ("passed", "B of at most 286.1 MiB")
    text = run(store, wheel).stdout
    assert "the libraries need manylinux_2_5_x86_64" in text
    assert "native on A100 (8.0)" in text
    assert "cannot run on V100 (7.0), Jetson AGX Xavier (7.2), T4 (7.5), Jetson AGX Orin (8.7)" in text
    assert "of at most" not in text, "no limit, no check"


def test_wheel_without_a_requirement_of_torch_fails_once(stubs: Path, store: Path, tmp_path: Path) -> None:
    """The check `metadata` names the fault; the window says which torch would be right."""
    _, proofs = verify(with_op(torch="added", requires=(), version="1.0").write(tmp_path, stubs), store)
    assert [proof["check"] for proof in proofs if proof["verdict"] == "failed"] == ["metadata"]
    assert [proof["reason"] for proof in proofs if proof["check"] == "window"] == ["links with torch 2.12"]


@pytest.mark.parametrize(
    ("record", "failed"),
    [
        ('{"recipe": {"cuda": "optional"}}', []),
        ('{"recipe": {}}', ["payload", "device-code"]),
        ('{"recipe": "optional"}', ["payload", "device-code"]),
        ("{", ["payload", "device-code"]),
    ],
)
def test_the_record_of_the_build_says_whether_gpu_code_is_required(
    record: str, failed: list[str], stubs: Path, store: Path, tmp_path: Path
) -> None:
    """The version names a CUDA in every wheel that buildfarm builds."""

    def with_record(members: dict[str, bytes]) -> None:
        members["ops-1.0+cu130.dist-info/buildfarm.json"] = record.encode()

    wheel = with_lib(Lib(gpu=None), after=with_record)
    _, proofs = verify(wheel.write(tmp_path, stubs), store)
    without = [one["check"] for one in proofs if one["verdict"] == "failed" and one["check"] != "record"]
    assert without == failed


def test_files_that_are_no_readable_wheels_do_not_stop_the_others(stubs: Path, store: Path, tmp_path: Path) -> None:
    good = Wheel().write(tmp_path, stubs)
    broken = Wheel(libs={"ops/_C.so": Lib().compiled(stubs)[:100]}).write(tmp_path / "broken", stubs)
    bad = {
        tmp_path / "damaged-1.0-py3-none-any.whl": "wheel-damaged",
        broken: "wheel-damaged",
        good.rename(tmp_path / "my wheel (1).whl"): "wheel-mislabelled",
        tmp_path / "b\udcff#1-1.0-py3-none-any.whl": "wheel-mislabelled",
    }
    for path in bad:
        if path.name.endswith("-1.0-py3-none-any.whl"):
            path.write_bytes(b"no zip")
    good = Wheel().write(tmp_path, stubs)
    done = run(store, *bad, good)
    assert done.exit_code == Exit.USAGE, done.output
    assert f"{good.name}  " in done.stdout
    assert "damaged-1.0-py3-none-any.whl: this wheel cannot be read" in " ".join(done.stderr.split())
    judged, *others = json.loads(run(store, *bad, good, "--json").stdout)
    assert (judged["wheel"], judged["failed"]) == (good.name, False)
    assert [(one["wheel"], one["failed"], one["error"]["code"]) for one in others] == [
        (path.name, True, code) for path, code in bad.items()
    ]


def test_failure_names_the_largest_libraries_and_their_architectures(stubs: Path, store: Path, tmp_path: Path) -> None:
    more = Lib("int table[200000] = {1};\n" + Lib().source, gpu=(*NATIVE, (SASS, 75, 0)))
    wheel = Wheel(libs={**Wheel().libs, "ops/_large.so": more}).write(tmp_path, stubs)
    _, proofs = verify(wheel, store, "--max-size", "1KiB")
    (reason,) = [proof["reason"] for proof in proofs if proof["verdict"] == "failed"]
    assert "more than its limit of 1 KiB; unpacked, the largest libraries are ops/_large.so with 79" in reason
    assert "(GPU code: sm_" in reason
    assert reason.index("ops/_large.so") < reason.index("ops/_C.")


CUDA_13 = "__version__ = '2.11.0+cu130'\ncuda: str = '13.0'\n"


def raised(done: Result) -> Code:
    assert isinstance(done.exception, BuildfarmError)
    return done.exception.code


def torch_wheel(folder: Path, libraries: Path, version_file: str = CUDA_13) -> Path:
    """A torch wheel with a library that no inventory reads."""
    files: dict[str, str | bytes] = {f"torch/lib/{file.name}": file.read_bytes() for file in libraries.glob("lib*.so")}
    files |= {"torch/lib/libcudnn.so.9": b"not read", "torch/lib/libcudart.so.13": b"not read"}
    files |= {"torch/version.py": version_file}
    return pure_wheel(folder, "torch", "2.11.0", files, tag="cp312-cp312-manylinux_2_28_x86_64")


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


def test_verify_reads_the_symbols_that_it_lacks(stubs: Path, tmp_path: Path, index: PackageIndex) -> None:
    """Of the torch that a wheel is pinned to and of the one that the user names, once; the torch wheel is not kept."""
    torch_wheel(index.root / "default", stubs)
    wheel, store = Wheel(requires=("torch==2.11.*",)).write(tmp_path, stubs), tmp_path / "store"
    done = run(store, wheel)
    assert "and read which symbols it defines" in done.stderr
    assert "links with torch 2.11" in done.stdout
    assert done.exit_code == Exit.OK
    assert not list(store.rglob("torch-*.whl"))
    index.requested.clear()
    assert run(store, wheel, "--torch", "2.11").exit_code == Exit.OK
    assert index.requested == []

    unpinned = run(tmp_path / "empty", Wheel(requires=("torch>=2.6",)).write(tmp_path / "other", stubs))
    assert "not run" in unpinned.stdout
    assert "`buildfarm verify` with `--torch SERIES` reads them" in " ".join(unpinned.stdout.split())


def test_an_index_without_the_torch_that_verify_needs(stubs: Path, tmp_path: Path, index: PackageIndex) -> None:
    """That is an error only if the user names the torch."""
    wheel, store = Wheel(requires=("torch==2.11.*",)).write(tmp_path, stubs), tmp_path / "store"
    done = run(store, wheel)
    assert "the symbols of torch 2.11.0 could not be read" in " ".join(done.stderr.split())
    assert "not run" in done.stdout
    assert done.exit_code == Exit.OK
    assert raised(run(store, wheel, "--torch", "2.11")) is Code.PACKAGE_NOT_FOUND
    # An index that sends another release than it lists.
    torch_wheel(index.root / "default", stubs, CUDA_13.replace("13.0", "13.2"))
    assert raised(run(store, wheel, "--torch", "2.11")) is Code.SOURCE_DIFFERS


@pytest.mark.parametrize(
    ("version_file", "says"),
    [
        ("__version__ = '2.11.0'\ncuda: Optional[str] = None\n", "no torch wheel with CUDA"),
        ("__version__ = 'nightly'\ncuda: str = '13.0'\n", "no torch wheel with CUDA"),
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
    outputs = [run(place, wheel).stdout for place in (store, tmp_path / "other")]
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
