"""A failed import, and what the source says about it."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from builder.matrix.config import PathSource, Recipe, SdistSource
from builder.proofs.cells.import_check import import_hints

NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/x/lib/python3.12/site-packages/tiny/table.json'\n"


def recipe(source: PathSource | SdistSource) -> Recipe:
    return Recipe("tiny", "1.0", folder=Path("/"), source=source)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "tiny-1.0-py3-none-any.whl"
    with ZipFile(file, "w") as archive:
        archive.writestr("tiny/__init__.py", "")
    return file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name in ("src/tiny/table.json", "src/tiny/__init__.py", "csrc/bind.cpp"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_data_that_the_wheel_lacks_and_the_source_has(source: Path, wheel: Path) -> None:
    (hint,) = import_hints(NO_FILE, wheel, recipe(PathSource(source)))
    assert hint.startswith("the source has src/tiny/table.json, and the wheel does not: add it to `package_data`")


def test_data_without_a_hint(source: Path, wheel: Path) -> None:
    assert import_hints(NO_FILE, wheel, recipe(PathSource(source / "absent"))) == []
    assert import_hints(NO_FILE, wheel, recipe(SdistSource("tiny", "1.0", "0" * 64))) == []
    with ZipFile(wheel, "a") as archive:
        archive.writestr("tiny/table.json", "{}")
    assert import_hints(NO_FILE, wheel, recipe(PathSource(source))) == [], "the wheel has it"
    (source / "src/tiny/table.json").unlink()
    wheel.write_text("")
    assert import_hints(NO_FILE, wheel, recipe(PathSource(source))) == [], "there is no wheel"


NO_MODULE = "ModuleNotFoundError: No module named 'tiny.ops'\n"
NO_NAME = "ImportError: cannot import name '_fast' from 'tiny' (/x/site-packages/tiny/__init__.py)\n"


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("src/tiny/ops/fn.py", "the source has src/tiny/ops without src/tiny/ops/__init__.py, so `find_packages()`"),
        ("src/tiny/ops/__init__.py", "the source has src/tiny/ops, and the wheel does not: add tiny.ops to"),
    ],
)
def test_a_package_that_the_wheel_lacks_and_the_source_has(source: Path, wheel: Path, file: str, hint: str) -> None:
    (source / file).parent.mkdir()
    (source / file).touch()
    (found,) = import_hints(NO_MODULE, wheel, recipe(PathSource(source)))
    assert found.startswith(hint)
    with ZipFile(wheel, "a") as archive:
        archive.writestr("tiny/ops/__init__.py", "")
    assert import_hints(NO_MODULE, wheel, recipe(PathSource(source))) == [], "another module of the same name fails"


def test_a_module_at_the_top_and_a_package_of_others(source: Path, wheel: Path) -> None:
    for name in ("third_party/einops/__init__.py", "python/helper.py"):
        (source / name).parent.mkdir(parents=True)
        (source / name).touch()
    no_module = "ModuleNotFoundError: No module named '{}'\n"
    assert import_hints(no_module.format("einops"), wheel, recipe(PathSource(source))) == []
    (hint,) = import_hints(no_module.format("helper"), wheel, recipe(PathSource(source)))
    assert hint.startswith("the source has python/helper.py, and the wheel does not: add helper to `py_modules`")


@pytest.mark.parametrize("optional", [True, False])
def test_an_optional_extension_that_the_wheel_lacks(source: Path, wheel: Path, optional: bool) -> None:
    extension = f"Extension('tiny._fast', ['a.c'], optional={optional})"
    (source / "setup.py").write_text(f"from setuptools import *\nsetup(ext_modules=[{extension}])\n")
    for stderr in (NO_NAME, "ModuleNotFoundError: No module named 'tiny._fast'\n"):
        hints = import_hints(stderr, wheel, recipe(PathSource(source)))
        assert ["setup.py compiles tiny._fast with `optional=True`" in hint for hint in hints] == [True] * optional
