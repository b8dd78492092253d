"""Official wheels: the file pip would take for a Python, kept by its sha256, fetched once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.errors import Code, MissingToolError, UsageError
from builder.hashing import sha256_of
from builder.matrix.axes import Python
from builder.wheels.sources.index import download_wheel, fetch_wheel
from builder.wheels.sources.prepare import locate_sdist
from tests.conftest import coded
from tests.unit import loopback

PYTHON = Python(sys.version_info.major, sys.version_info.minor)


def test_it_is_fetched_once_and_kept_by_its_digest(index: loopback.PackageIndex, tmp_path: Path) -> None:
    index.add("ops", "1.0")
    first = fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path).path
    assert first.name == "ops-1.0-py3-none-any.whl"
    assert first.parent.parent == tmp_path / "wheels"
    index.requested.clear()
    assert fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path).path == first
    assert download_wheel(f"{index.url}/default/{first.name}", cache=tmp_path).path == first


def test_the_hash_in_a_url_is_compared(index: loopback.PackageIndex, tmp_path: Path) -> None:
    wheel = loopback.pure_wheel(index.root / "default", "ops", "1.0")
    url = f"{index.url}/default/{wheel.name}"
    fetched = download_wheel(f"{url}#sha256={sha256_of(wheel)}", cache=tmp_path)
    assert (fetched.path.read_bytes(), fetched.url) == (wheel.read_bytes(), url)
    with pytest.raises(MissingToolError, match=f"but the URL names {'0' * 64}"):
        download_wheel(f"{url}#sha256={'0' * 64}", cache=tmp_path)


def test_a_version_that_is_not_there_is_a_usage_error(index: loopback.PackageIndex, tmp_path: Path) -> None:
    index.add("ops", "1.0")
    with pytest.raises(UsageError, check=coded(Code.PACKAGE_NOT_FOUND)):
        fetch_wheel("ops", "2.0", PYTHON, cache=tmp_path)


def test_a_project_with_wheels_only_names_the_commands_for_wheels(index: loopback.PackageIndex) -> None:
    loopback.pure_wheel(index.root / "default", "ops", "1.0")
    with pytest.raises(UsageError, check=coded(Code.PACKAGE_NOT_FOUND)) as caught:
        locate_sdist("ops", "")
    assert "`buildfarm verify ops==VERSION` judges a wheel" in caught.value.hints[0]
    assert "write a recipe with `source: {wheel: ops, version: VERSION}`" in caught.value.hints[0]


def test_a_project_without_a_wheel_names_the_command_that_builds_one(
    index: loopback.PackageIndex, tmp_path: Path
) -> None:
    (index.root / "default").mkdir(parents=True)
    (index.root / "default" / "ops-1.0.tar.gz").touch()
    with pytest.raises(UsageError, check=coded(Code.PACKAGE_NOT_FOUND)) as caught:
        fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path)
    assert "`buildfarm build ops==1.0` builds a wheel" in caught.value.hints[0]
