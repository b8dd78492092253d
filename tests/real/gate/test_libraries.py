"""The check "loaded" on real libraries: a library that no import has loaded is named with the line to add."""

import ctypes
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from builder.gate.imports.libraries import installed_libraries, loaded_code, loaded_libraries, no_op
from builder.gate.outcome import NOT_RUN, PASSED, Outcome, Spec
from tests.fixtures.compiled import compiled

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
            compiled(tmp_path / "lazy", source, *flags, name=f"{name}.so")
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


def test_a_module_of_python_3_15_is_named_and_another_library_needs_one(install: Install) -> None:
    install(_C=('extern "C" void *PyModExport__C() { return nullptr; }',), libops=("int answer;",))
    assert "`imports: [lazy, lazy._C]`" in outcomes()["lazy/_C.so"].reason
    assert "add the module that loads the library to `imports`" in outcomes()["lazy/libops.so"].reason


def test_a_library_that_only_an_unloaded_library_needs_is_not_listed(install: Install, tmp_path: Path) -> None:
    install(libcore=("int core() { return 1; }",))
    flags = (f"-L{tmp_path / 'lazy'}", "-l:libcore.so")
    compiled(tmp_path / "lazy", "int core(); int outer() { return core(); }", *flags, name="outer.so")
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


@pytest.fixture
def cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(version=SimpleNamespace(cuda="13.0"))
    monkeypatch.setitem(sys.modules, "torch", torch)


def needing(tmp_path: Path, runtime: str) -> tuple[str, ...]:
    """The source and flags of a library that needs this runtime."""
    compiled(tmp_path, "", f"-Wl,-soname,{runtime}", name=runtime)
    return "int answer;", "-Wl,--no-as-needed", f"-L{tmp_path}", f"-l:{runtime}"


@pytest.mark.usefixtures("cuda_13")
def test_a_library_for_another_cuda_or_for_gpus_of_others_is_not_advised(install: Install, tmp_path: Path) -> None:
    runtimes = {"x_cuda12": "libcudart.so.12", "x_cuda13": "libcudart.so.13", "rocm": "libamdhip64.so.6"}
    install(**{name: needing(tmp_path, runtime) for name, runtime in runtimes.items()})
    found = outcomes()
    own = found.pop("lazy/x_cuda13.so")
    assert (own.verdict, own.remark) == (NOT_RUN, True)
    assert {name: (one.verdict, one.reason) for name, one in found.items()} == {
        "lazy/x_cuda12.so": (PASSED, "not loaded here: it is for CUDA 12"),
        "lazy/rocm.so": (PASSED, "not loaded here: it is for GPUs of AMD"),
    }


@pytest.mark.usefixtures("cuda_13")
def test_a_wheel_without_a_library_for_this_cuda_is_a_remark(install: Install, tmp_path: Path) -> None:
    install(x=needing(tmp_path, "libcudart.so.12"))
    (found,) = outcomes().values()
    assert (found.verdict, found.remark) == (NOT_RUN, True)
    assert "it needs the runtime of CUDA 12, and torch has CUDA 13.0" in found.reason


def test_copies_of_a_library_are_named_once(install: Install) -> None:
    folder = install(libx=("int x;",))
    for name in ("liby.so", "libz.so"):
        shutil.copy(folder / "libx.so", folder / name)
    record = folder.parent / "lazy-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "lazy/liby.so,,\nlazy/libz.so,,\n")
    assert set(outcomes()) == {"lazy/libx.so"}
    ctypes.CDLL(str(folder / "liby.so"))
    assert {name: one.verdict for name, one in outcomes().items()} == {"lazy/liby.so": PASSED}


def test_a_variant_is_not_advised_without_a_word(install: Install) -> None:
    folder = install(_86_C=(MODULE.format("_86_C"),), _89_C=(MODULE.format("_89_C"),))
    ctypes.CDLL(str(folder / "_86_C.so"))
    reason = outcomes()["lazy/_89_C.so"].reason
    assert "or add it to `accepts` if the package loads it only on demand or on other GPUs" in reason


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('.section .rodata\n.asciz "N5torch8autograd7CppNodeIN4mine4LossEEE"\n', (False, True)),
        ('.section .nv_fatbin, "a"\n.byte 0\n', (True, False)),
    ],
)
def test_gpu_code_and_a_formula_of_cpp_are_seen_in_loaded_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, found: tuple[bool, bool]
) -> None:
    library = compiled(tmp_path, code, name="_C.so", language="assembler")
    package = ModuleType("mine")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "mine", package)
    assert loaded_code(["mine.ops"]) == (False, False), "it is not loaded"
    ctypes.CDLL(str(library))
    assert loaded_code(["mine.ops"]) == found
