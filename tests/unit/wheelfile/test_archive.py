"""The reader of wheel files, the machines that tags admit, and installed projects."""

import zipfile
from collections.abc import Mapping
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from builder.matrix.axes import Python
from builder.wheelfile.archive import (
    DamagedWheelError,
    WheelFile,
    differences,
    distribution_name,
    record_fault,
    wheel_fault,
)
from builder.wheelfile.compatibility import is_compatible
from builder.wheelfile.facts import open_wheel
from tests.fixtures.zip_archives import ARCHIVES
from tests.unit.loopback import pure_wheel

INFO = "ops-1.0.dist-info"
FILES = {
    "ops/__init__.py": "x = 1\n",
    f"{INFO}/METADATA": "Name: ops\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Tag: cp312-cp312-linux_x86_64\nTag: cp311-cp311-linux_x86_64\n",
}


def written(
    folder: Path,
    files: Mapping[str, str | bytes],
    method: int = zipfile.ZIP_STORED,
    *,
    name: str = "ops-1.0-cp312-cp312-linux_x86_64.whl",
    year: int = 1980,
) -> Path:
    """An archive with these files; a script is executable."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, (year, 1, 1, 0, 0, 0))
            info.external_attr = (0o755 if path.endswith(".sh") else 0o644) << 16
            archive.writestr(info, content, method)
    return folder / name


def test_files_and_metadata(tmp_path: Path) -> None:
    with WheelFile(written(tmp_path, {"ops/": "", "ops/run.sh": "", **FILES})) as opened:
        assert opened.names == ("ops/run.sh", *FILES)
        assert opened.read("ops/__init__.py") == b"x = 1\n"
        assert opened.executable("ops/run.sh")
        assert not opened.executable("ops/__init__.py")
        assert opened.dist_info == INFO
        assert opened.metadata["Name"] == "ops"
        assert opened.tags == ("cp311-cp311-linux_x86_64", "cp312-cp312-linux_x86_64")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        pytest.param({f"{INFO}/METADATA": bytes(2**23)}, "METADATA unpacks to 8388608 bytes; the limit", id="METADATA"),
        pytest.param({f"{INFO}/x.json": bytes(2**26)}, "x.json unpacks to 67108864 bytes; the limit", id="dist-info"),
        pytest.param({"ops/x.so": bytes(2**25)}, "ops/x.so unpacks from .* to 33554432 bytes", id="library"),
        pytest.param({"ops/" + "n" * 256: b""}, "a name of more than 255 bytes", id="long name"),
        pytest.param({"d/" * 600 + "f": b""}, "a path of more than 1024 bytes", id="deep"),
        pytest.param({f"{INFO}/WHEEL": b"Tag: " + b"a." * 200 + b"-b-c\n"}, "a Tag of more than 255", id="tags"),
    ],
)
def test_a_wheel_beyond_the_limits_is_refused(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    metadata = {f"{INFO}/METADATA": b"Name: ops\nVersion: 1.0\n", f"{INFO}/WHEEL": b"Tag: py3-none-any\n"}
    path = written(tmp_path, metadata | files, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    with pytest.raises(DamagedWheelError, match=says), WheelFile(path) as opened:
        assert opened.tags


def test_a_byte_that_is_not_utf_8(tmp_path: Path) -> None:
    with WheelFile(written(tmp_path, {f"{INFO}/METADATA": b"Name: ops\nAuthor: M\xfcller\n"})) as opened:
        assert opened.metadata["Author"] == "M\ufffdller"
        str(opened.metadata["Author"]).encode()


def test_a_file_without_a_name_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"a": b"", f"{INFO}/METADATA": b""})
    data = path.read_bytes()
    start = data.index(b"PK\x01\x02")  # the first entry of the list of files: its name becomes its extra field
    path.write_bytes(data[: start + 28] + b"\0\0\x01\0" + data[start + 32 :])
    with pytest.raises(DamagedWheelError, match=r"cannot be read|empty name"):  # Python 3.13 opens it
        WheelFile(path)


def test_no_name_has_a_nul_byte(tmp_path: Path) -> None:
    path = written(tmp_path, {"ops/aXb": b"", f"{INFO}/METADATA": b""})
    path.write_bytes(path.read_bytes().replace(b"ops/aXb", b"ops/a\0b"))
    with WheelFile(path) as opened:
        assert opened.names == ("ops/a", f"{INFO}/METADATA")


def test_only_some_of_many_duplicates_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ops-1.0-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(2000):
            archive.NameToInfo.clear()  # so that zipfile warns of no duplicate
            archive.writestr(f"x{number % 1000:03}", b"")
    with pytest.raises(DamagedWheelError, match=r"two files of the same name: x000, x001, x002, x003, x004$"):
        WheelFile(path)


@pytest.mark.parametrize(("method", "name"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma")])
def test_only_methods_that_the_package_index_takes(tmp_path: Path, method: int, name: str) -> None:
    """An LZMA header may ask for 4 GiB of memory."""
    path = written(tmp_path, {f"{INFO}/METADATA": b"Name: ops\nVersion: 1.0\n"}, method)
    with pytest.raises(DamagedWheelError, match=rf"METADATA has the compression method {method} \({name}\)"):
        WheelFile(path)


def test_damaged_member(tmp_path: Path) -> None:
    path = written(tmp_path, {f"{INFO}/METADATA": b"Name: ops\nVersion: 1.0\n" * 50})
    data = bytearray(path.read_bytes())
    start = data.index(b"METADATA") + 8
    data[start : start + 30] = b"\xff" * 30
    path.write_bytes(data)
    with pytest.raises(DamagedWheelError), WheelFile(path) as opened:
        assert opened.metadata


def test_a_file_that_claims_to_be_larger_than_the_wheel_is_refused(tmp_path: Path) -> None:
    """zipfile reads as many bytes at once as the list of files says."""
    path = written(tmp_path, FILES)
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")  # WHEEL in the list of files
    data[entry + 20 : entry + 28] = (2**31).to_bytes(4, "little") * 2
    path.write_bytes(data)
    with pytest.raises(DamagedWheelError, match="WHEEL is larger than the wheel that contains it"):
        WheelFile(path)


def fault_of(path: Path) -> str:
    with WheelFile(path) as wheel:
        return record_fault(wheel)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"ops.py": "other"}, "ops.py differs from its hash in RECORD, so the wheel was changed after it was built"),
        ({"more.py": ""}, "RECORD does not list more.py, so the wheel was changed after it was built"),
        ({"ops.py": None}, "the wheel lacks ops.py, which RECORD lists"),
        ({f"{INFO}/RECORD": "ops.py,md5=x,0\n"}, "RECORD has no hash of ops.py"),
        ({f"{INFO}/RECORD.jws": "signature"}, ""),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, change: dict[str, str | None], fault: str) -> None:
    wheel = pure_wheel(tmp_path, "ops", "1.0")
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in (members | change).items():
            if content is not None:
                archive.writestr(name, content)
    assert fault_of(wheel) == fault


@pytest.mark.parametrize("case", ARCHIVES)
def test_what_uv_refuses_is_a_fault(tmp_path: Path, case: str) -> None:
    content, fault = ARCHIVES[case]
    (tmp_path / "t0-1.0-py3-none-any.whl").write_bytes(content)
    with open_wheel(tmp_path / "t0-1.0-py3-none-any.whl") as wheel:
        found = wheel_fault(wheel)
    assert (fault in found) if fault else not found


def between(tmp_path: Path, one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    return differences(written(tmp_path / "one", one), written(tmp_path / "two", two))


def test_files_that_differ(tmp_path: Path) -> None:
    one = {"ops/a.py": "a", "ops/c.py": "c", "ops/_C.so": "one"}
    two = {"ops/c.py": "c", "ops/_C.so": "two", "ops/d.py": ""}
    assert between(tmp_path, one, one) == []
    assert between(tmp_path, one, two) == [
        "ops/_C.so: differs",
        "ops/a.py: only in the first",
        "ops/d.py: only in the second",
        "the archive: differs in the order of its files",
    ]


def test_difference_of_the_archive(tmp_path: Path) -> None:
    (order,) = between(tmp_path, {"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert order == "the archive: differs in the order of its files"
    (date,) = differences(written(tmp_path / "1", {"a": "1"}), written(tmp_path / "2", {"a": "1"}, year=1990))
    assert "dates" in date
    other = "ops-1.1-cp312-cp312-linux_x86_64.whl"
    (name,) = differences(written(tmp_path / "1", {"a": "1"}), written(tmp_path / "2", {"a": "1"}, name=other))
    assert other in name


@pytest.mark.parametrize(
    ("name", "python", "expected"),
    [
        ("ops-1.0-py3-none-any.whl", "3.12", True),
        ("ops-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", "3.12", True),
        ("ops-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", "3.13", False),
        ("ops-1.0-cp310-abi3-manylinux_2_17_x86_64.whl", "3.13", True),
        ("ops-1.0-cp313-abi3-manylinux_2_17_x86_64.whl", "3.12", False),
        ("ops-1.0-cp313-cp313t-manylinux_2_17_x86_64.whl", "3.13t", True),
        ("ops-1.0-cp313-cp313-manylinux_2_17_x86_64.whl", "3.13t", False),
        ("ops-1.0-cp312-cp312-win_amd64.whl", "3.12", False),
        ("ops-1.0-py3-none-manylinux_2_17_x86_64.whl", "3.12", True),
        ("ops-1.0-py3-none-manylinux_2_99_x86_64.whl", "3.12", False),
        ("ops-1.0-py39-none-manylinux_2_17_x86_64.whl", "3.12", True),
        ("ops-1.0-py313-none-manylinux_2_17_x86_64.whl", "3.12", False),
        ("ops-1.0.tar.gz", "3.12", False),
    ],
)
def test_compatible_with_a_python_by_tags(name: str, python: str, expected: bool) -> None:
    assert is_compatible(name, Python.parse(python)) is expected


def test_any_glibc_ignores_this_machines_glibc() -> None:
    good = ("cp312-cp312-manylinux_2_99_x86_64", "cp312-cp312-linux_x86_64", "py3-none-manylinux_2_99_x86_64")
    bad = ("cp313-cp313-manylinux_2_99_x86_64", "cp312-cp312-manylinux_2_99_s390x", "cp312-cp312-win_amd64")
    tags = (*good, "py3-none-any", *bad, "cp312-cp312-macosx_11_0_x86_64", "cp312-cp312-musllinux_1_2_x86_64")
    fitting = [tag for tag in tags if is_compatible(f"ops-1.0-{tag}.whl", Python(3, 12), any_glibc=True)]
    assert fitting == [*good, "py3-none-any"]


@pytest.mark.parametrize("metadata", [None, b"", b"Metadata-Version: 2.1\nVersion: 1\n", b"Name: \xff\n", b"Name:\n"])
def test_a_damaged_project_has_no_name(tmp_path: Path, metadata: bytes | None) -> None:
    damaged = tmp_path / "damaged-1.dist-info"
    damaged.mkdir()
    if metadata is not None:
        (damaged / "METADATA").write_bytes(metadata)
    assert distribution_name(PathDistribution(damaged)) == ""
