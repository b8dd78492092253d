"""`buildfarm relabel`: a wheel whose file was renamed becomes one whose file name, METADATA and WHEEL agree."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import UsageError
from builder.hashing import sha256_of
from builder.wheelfile.archive import WheelFile, record_fault
from builder.wheelfile.facts import read_facts
from tests.fixtures.handmade_wheels import w0

TAG = "cp312-cp312-linux_x86_64"
LOCAL = "1.0+cu12torch2.11cxx11abiTRUE"


def relabel(wheel: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["relabel", str(wheel), "--out", str(wheel.parent / "out"), *options])


def made(done: Result) -> Path:
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.strip())
    with WheelFile(path) as archive:
        assert record_fault(archive) == ""
    return path


@pytest.mark.parametrize(
    ("options", "name", "version", "tag"),
    [
        ((), "t0", LOCAL.lower(), TAG),
        (("--version", "2.0+CU130"), "t0", "2.0+cu130", TAG),
        (("--name", "Other.Name"), "Other.Name", LOCAL.lower(), TAG),
        (("--tag", "cp312-cp312-manylinux_2_34_x86_64"), "t0", LOCAL.lower(), "cp312-cp312-manylinux_2_34_x86_64"),
    ],
)
def test_the_label(tmp_path: Path, options: tuple[str, ...], name: str, version: str, tag: str) -> None:
    files = {"t0/__init__.py": b"", "t0-1.0.data/scripts/run": b"#!/bin/sh\n"}
    wheel = w0(tmp_path, "t0", LOCAL, TAG, files, meta_version="1.0")
    before = sha256_of(wheel)
    facts = read_facts(made(relabel(wheel, *options)))
    assert (facts.name, facts.version, facts.tags) == (name, version, (tag,))
    stem = f"{name.lower().replace('.', '_')}-{version}"
    assert facts.filename == f"{stem}-{tag}.whl"
    assert {f"{stem}.data/scripts/run", f"{stem}.dist-info/RECORD"} <= set(facts.files)
    assert sha256_of(wheel) == before


def test_a_tag_of_the_file_name_alone(tmp_path: Path) -> None:
    wheel = w0(tmp_path, "t0", "1.0", "cp312-cp312-linux_x86_64", {"t0/__init__.py": b""})
    renamed = wheel.rename(tmp_path / "t0-1.0-2-cp312-cp312-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl")
    path = made(relabel(renamed))
    assert path.name == renamed.name
    assert read_facts(path).tags == tuple(f"cp312-cp312-manylinux_2_{minor}_x86_64" for minor in (28, 34))


def test_same_input_same_bytes_and_no_change_in_place(tmp_path: Path) -> None:
    wheel = w0(tmp_path, "t0", LOCAL, TAG, {"t0/__init__.py": b""}, meta_version="1.0", requires=("torch",))
    path = made(relabel(wheel))
    first = path.read_bytes()
    assert made(relabel(wheel)).read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        assert "Requires-Dist: torch\n" in archive.read(f"t0-{LOCAL.lower()}.dist-info/METADATA").decode()
    right = w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": b""})
    done = CliRunner().invoke(app, ["relabel", str(right), "--out", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "the folder has a different file of this name" in str(done.exception)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--version", "one"), "Invalid version: 'one'"),
        (("--name", "a b"), "name is invalid: 'a b'"),
        (("--tag", "linux_x86_64"), "'linux_x86_64' is not a tag such as"),
    ],
)
def test_a_malformed_label(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done = relabel(w0(tmp_path, "t0", "1.0", TAG, {}), *options)
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert not list(tmp_path.glob("out/*"))


def test_a_changed_wheel_gets_no_new_record(tmp_path: Path) -> None:
    wheel = w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": b""})
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("t0/more.py", "")
    done = relabel(wheel)
    assert isinstance(done.exception, UsageError)
    assert "RECORD does not list t0/more.py" in str(done.exception)
