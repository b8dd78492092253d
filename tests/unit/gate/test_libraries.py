"""The check "loaded" on real libraries: a library that no import has loaded is named with the line to add."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.gate.imports.libraries import installed_libraries, loaded_libraries, no_op
from builder.gate.outcome import NOT_RUN, PASSED, Outcome, Spec
from tests.unit.proofs import make

SPEC = Spec("lazy", ["lazy"])
MODULE = 'extern "C" void *PyInit_{}() {{ return nullptr; }}'
GPU = '__asm__(".section .nv_fatbin, \\"a\\"\\n.byte 0\\n.text");'

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Compile libraries into an installed distribution: file name to source and flags."""

    def install(**libraries: tuple[str, ...]) -> Path:
        (tmp_path / "lazy").mkdir()
        for name, (source, *flags) in libraries.items():
            make.compiled(tmp_path / "lazy", source, *flags, name=f"{name}.so")
        info = tmp_path / "lazy-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lazy\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"lazy/{name}.so,,\n" for name in libraries) + "lazy/__init__.py,,\n")
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path / "lazy"

    return install


def outcomes() -> dict[str, Outcome]:
    return {one.case: one for one in loaded_libraries(installed_libraries("lazy"), SPEC)}


def test_a_loaded_library_passes_and_another_is_named_with_the_line_to_add(install: Install) -> None:
    folder = install(_C=(MODULE.format("_C"),), csrc=(GPU + MODULE.format("csrc"),))
    ctypes.CDLL(str(folder / "_C.so"))
    found = outcomes()
    assert found["lazy/_C.so"].verdict == PASSED
    missing = found["lazy/csrc.so"]
    assert (missing.verdict, missing.remark) == (NOT_RUN, True)
    assert "loads this library with GPU code" in missing.reason
    assert "`imports: [lazy, lazy.csrc]`" in missing.reason
    ctypes.CDLL(str(folder / "csrc.so"))
    assert {one.verdict for one in outcomes().values()} == {PASSED}


def test_a_library_that_is_no_module_needs_the_module_that_loads_it(install: Install) -> None:
    install(libops=("int answer;",))
    assert "add the module that loads the library to `imports`" in outcomes()["lazy/libops.so"].reason


def test_a_library_that_only_an_unloaded_library_needs_is_not_listed(install: Install, tmp_path: Path) -> None:
    install(libcore=("int core() { return 1; }",))
    flags = (f"-L{tmp_path / 'lazy'}", "-l:libcore.so")
    make.compiled(tmp_path / "lazy", "int core(); int outer() { return core(); }", *flags, name="outer.so")
    with (tmp_path / "lazy-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("lazy/outer.so,,\n")
    assert set(outcomes()) == {"lazy/outer.so"}


def test_without_the_distribution_or_a_library_nothing_passes() -> None:
    assert [one.verdict for one in loaded_libraries(None, SPEC)] == [NOT_RUN]
    assert [one.verdict for one in loaded_libraries([], SPEC)] == [NOT_RUN]


def test_imports_that_register_no_op_are_a_remark(install: Install) -> None:
    install(_C=(GPU,))
    found = no_op(installed_libraries("lazy"))
    assert (found.verdict, found.remark) == (NOT_RUN, True)
    assert "although the wheel has GPU code (lazy/_C.so)" in found.reason
    assert "GPU code" not in no_op([]).reason
