"""Differences between two wheels: file by file, and in a library section by section."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.wheelfile.diff import Difference, differences

NAME = "ops-1.0-cp312-cp312-linux_x86_64.whl"


def library(folder: Path, code: str, *flags: str) -> bytes:
    source = folder / "code.c"
    source.write_text(code)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wl,--build-id", "-o", folder / "code.so", source, *flags],
        check=True,
        capture_output=True,
    )
    return (folder / "code.so").read_bytes()


def wheel(folder: Path, files: Mapping[str, bytes | str], *, name: str = NAME, year: int = 1980) -> Path:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (year, 1, 1, 0, 0, 0)), content)
    return folder / name


def between(tmp_path: Path, one: Mapping[str, bytes | str], two: Mapping[str, bytes | str]) -> list[Difference]:
    return differences(wheel(tmp_path / "one", one), wheel(tmp_path / "two", two))


def test_equal_wheels_have_no_difference(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {"ops/a.py": "a", "ops/_C.so": library(tmp_path, "int f(void) { return 1; }")}
    assert between(tmp_path, files, files) == []


def test_different_file_shows_the_first_difference(tmp_path: Path) -> None:
    one = {"ops/a.py": "same\nmade in /tmp/one/place\n", "ops/b.py": "", "ops/c.py": "c"}
    two = {"ops/a.py": "same\nmade in /tmp/two/place\n", "ops/c.py": "c", "ops/d.py": ""}
    found = {each.member: each for each in between(tmp_path, one, two) if each.member}
    assert found["ops/a.py"].what == "3 of 28 bytes, first 'made in /tmp/one/place' and 'made in /tmp/two/place'"
    assert found["ops/b.py"].what == "only in the first"
    assert found["ops/d.py"].what == "only in the second"
    assert "ops/c.py" not in found


def test_different_library_is_compared_by_section(tmp_path: Path) -> None:
    code = 'const char *where(void) { return "%s"; }'
    one = library(tmp_path, code % "/tmp/store-1/src/a.cu")
    two = library(tmp_path, code % "/tmp/store-2/src/a.cu")
    found = between(tmp_path, {"ops/_C.so": one}, {"ops/_C.so": two})
    sections = {each.section: each.what for each in found}
    assert set(sections) == {".rodata", ".note.gnu.build-id"}
    assert "store-1" in sections[".rodata"]
    assert "store-2" in sections[".rodata"]
    assert "computed from the other sections" in sections[".note.gnu.build-id"]
    assert str(found[0]).startswith("ops/_C.so: .")


def test_gpu_code_is_named(tmp_path: Path) -> None:
    code = '__attribute__((section(".nv_fatbin"), used)) static const char gpu[] = "%s code";'
    one, two = library(tmp_path, code % "sm_80"), library(tmp_path, code % "sm_90")
    (fatbin,) = [each for each in between(tmp_path, {"_C.so": one}, {"_C.so": two}) if each.section == ".nv_fatbin"]
    assert fatbin.what.endswith("(GPU code)")


def test_section_of_one_wheel_only(tmp_path: Path) -> None:
    one = library(tmp_path, "int f(void) { return 1; }")
    two = library(tmp_path, "int f(void) { return 1; }", "-s")
    found = {each.section: each.what for each in between(tmp_path, {"_C.so": one}, {"_C.so": two})}
    assert found[".symtab"] == "only in the first (local symbols)"


def test_section_without_bytes_has_a_size(tmp_path: Path) -> None:
    one = library(tmp_path, "static int room[100]; int *f(void) { return room; }")
    two = library(tmp_path, "static int room[200]; int *f(void) { return room; }")
    assert ".bss" in {each.section for each in between(tmp_path, {"_C.so": one}, {"_C.so": two})}


def test_bytes_outside_of_all_sections_are_a_difference(tmp_path: Path) -> None:
    one = library(tmp_path, "int f(void) { return 1; }")
    (found,) = between(tmp_path, {"_C.so": one}, {"_C.so": one + b"\0"})
    assert found.what == "every section is equal; headers, padding or order differ"


def test_damaged_library_is_compared_as_a_file(tmp_path: Path) -> None:
    one = library(tmp_path, "int f(void) { return 1; }")
    (found,) = between(tmp_path, {"_C.so": one}, {"_C.so": one[:200]})
    assert found.section == ""
    assert f"{len(one)} and 200 bytes" in found.what


def test_difference_of_the_archive(tmp_path: Path) -> None:
    (order,) = between(tmp_path, {"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert str(order) == "the archive: differs in the order of its files"
    (date,) = differences(wheel(tmp_path / "1", {"a": "1"}), wheel(tmp_path / "2", {"a": "1"}, year=1990))
    assert "dates" in date.what
    other = NAME.replace("1.0", "1.1")
    (name,) = differences(wheel(tmp_path / "1", {"a": "1"}), wheel(tmp_path / "2", {"a": "1"}, name=other))
    assert other in name.what


def test_file_that_is_not_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "no.whl").write_text("no")
    with pytest.raises(UsageError, match="cannot be read"):
        differences(wheel(tmp_path / "one", {"a": "1"}), tmp_path / "no.whl")
