"""Official wheels: the file pip would take for a Python, kept by its sha256, fetched once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.errors import FarmError, MissingToolError, UsageError
from builder.matrix.axes import Python
from builder.wheels.official import download_wheel, fetch_wheel, fits
from tests.unit import loopback

PYTHON = Python(sys.version_info.major, sys.version_info.minor)


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
        ("ops-1.0.tar.gz", "3.12", False),
    ],
)
def test_a_wheel_fits_a_python_by_its_tags(name: str, python: str, expected: bool) -> None:
    assert fits(name, Python.parse(python)) is expected


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("cp312-cp312-manylinux_2_99_x86_64", True),
        ("cp312-cp312-linux_x86_64", True),
        ("cp313-cp313-manylinux_2_99_x86_64", False),
        ("cp312-cp312-manylinux_2_99_s390x", False),
        ("cp312-cp312-win_amd64", False),
        ("cp312-cp312-macosx_11_0_x86_64", False),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("py3-none-manylinux_2_99_x86_64", True),
        ("py3-none-any", True),
    ],
)
def test_a_container_may_have_a_newer_c_library(tags: str, expected: bool) -> None:
    assert fits(f"ops-1.0-{tags}.whl", Python(3, 12), any_libc=True) is expected


def test_it_is_fetched_once_and_kept_by_its_digest(index: loopback.PackageIndex, tmp_path: Path) -> None:
    index.add("ops", "1.0")
    first = fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path)
    assert first.name == "ops-1.0-py3-none-any.whl"
    assert first.parent.parent == tmp_path / "wheels"
    index.asked.clear()
    assert fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path) == first
    assert download_wheel(f"{index.url}/default/{first.name}", cache=tmp_path) == first


def test_a_version_that_is_not_there_is_a_usage_error(index: loopback.PackageIndex, tmp_path: Path) -> None:
    index.add("ops", "1.0")
    with pytest.raises(UsageError, match="the index has no such wheel"):
        fetch_wheel("ops", "2.0", PYTHON, cache=tmp_path)


def test_an_index_that_is_not_there_is_a_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(MissingToolError, match="could not be fetched"):
        fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path)


def test_an_address_without_a_wheel_is_a_sentence(index: loopback.PackageIndex, tmp_path: Path) -> None:
    with pytest.raises(FarmError, match="could not be fetched"):
        download_wheel(f"{index.url}/default/gone-1.0-py3-none-any.whl", cache=tmp_path)
